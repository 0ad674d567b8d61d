//! The stores that a promise must hold on: this process's memory, and a real Redis under two gateways.

use std::cell::{Cell, RefCell};

use tidegate::clock::Clock;

use crate::{
    client::{Client, Reply},
    gateway::Gateway,
    redis::RedisServer,
};

/// Where the counters are.
pub(crate) enum Stage {
    /// In the gateway.
    Memory,
    /// In this Redis, which two gateways share.
    Redis(RedisServer),
}

/// Runs one test body on every store.
pub(crate) fn on_every_store(test: impl Fn(&Stage)) {
    for stage in [Stage::Memory, Stage::Redis(RedisServer::start())] {
        test(&stage);
    }
}

impl Stage {
    /// The gateways of this stage, all on `yaml` and one clock.
    pub(crate) fn start(&self, yaml: &str, clock: &Clock) -> Fleet {
        let (count, yaml) = match self {
            Self::Memory => (1, yaml.to_owned()),
            Self::Redis(redis) => (2, format!("{}{yaml}", redis_section(redis))),
        };
        let gateways: Vec<_> =
            (0..count).map(|_| Gateway::start_at(&yaml, clock.clone())).collect();
        // Two connections each: they may meet both workers.
        let connect = |gateway: &Gateway| RefCell::new(Client::connect(gateway.address()));
        let clients = gateways.iter().chain(&gateways).map(connect).collect();
        Fleet { gateways, clients, next: Cell::new(0), store: self.section() }
    }

    fn section(&self) -> String {
        match self {
            Self::Memory => String::new(),
            Self::Redis(redis) => redis_section(redis),
        }
    }
}

/// Patient timeouts: a machine that is busy with other tests is no lost Redis.
fn redis_section(redis: &RedisServer) -> String {
    format!(
        "store: {{redis: {{shards: [{{primary: \"{}\"}}], connect_timeout: 5s, \
         response_timeout: 5s}}}}\n",
        redis.url()
    )
}

/// Gateways that count together. Requests go to one after the other.
pub(crate) struct Fleet {
    pub(crate) gateways: Vec<Gateway>,
    clients: Vec<RefCell<Client>>,
    next: Cell<usize>,
    store: String,
}

impl Fleet {
    /// Sends a GET to the next gateway. `headers` are whole lines, each with CR LF.
    pub(crate) fn get(&self, path: &str, headers: &str) -> Reply {
        let turn = self.next.get();
        self.next.set(turn + 1);
        self.clients[turn % self.clients.len()].borrow_mut().get(path, headers)
    }

    /// Sends a GET over one connection, so that what its last answer changed is there before it.
    pub(crate) fn get_in_order(&self, path: &str, headers: &str) -> Reply {
        self.clients[0].borrow_mut().get(path, headers)
    }

    /// Sends a GET with an access token.
    pub(crate) fn get_as(&self, token: &str, path: &str) -> Reply {
        self.get(path, &format!("Authorization: {token}\r\n"))
    }

    /// Replaces the rules of all gateways.
    ///
    /// # Panics
    ///
    /// If there is a fault in `yaml`.
    pub(crate) fn reload(&self, yaml: &str) {
        for gateway in &self.gateways {
            let reloaded = gateway.reload(&format!("{}{yaml}", self.store));
            reloaded.unwrap_or_else(|faults| panic!("{faults}"));
        }
    }
}
