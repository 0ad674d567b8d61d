//! The rows of the matrix: which targets fail, and how.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use testkit::{
    faults::{Behavior, FaultTarget, KernelCount, NameServer, Record},
    port::free_port,
};

/// Time for which a flapping target is good, and then refuses.
const FLAP: Duration = Duration::from_secs(2);
/// The name server of the rows of names; a resolver's configuration permits no other port.
pub(crate) const NAME_SERVER: (Ipv4Addr, u16) = (Ipv4Addr::new(127, 0, 0, 53), 53);
/// The name that moves, or that has a dead address.
pub(crate) const NAME: &str = "origin.faults.test";

/// What fails.
#[derive(Clone, Copy)]
pub(crate) enum Scenario<'a> {
    /// The first target.
    One(Behavior),
    /// All targets.
    All(Behavior),
    /// The first target refuses for 2 s, is good for 2 s, and so on.
    Flapping,
    /// The name's address refuses, and the name gets another one.
    MovedName(&'a Names),
    /// The name's IPv6 address.
    DeadFamily(&'a Names, Behavior),
}

/// A name server.
pub(crate) struct Names(NameServer);

/// The targets of a run.
pub(crate) struct Targets {
    all: Vec<FaultTarget>,
    /// How many of them fail, from the first.
    pub(crate) faulty: usize,
    pub(crate) record: Arc<Record>,
    /// `host:port` of each target in the configurations.
    pub(crate) authorities: Vec<String>,
    /// The configurations have a name.
    pub(crate) is_named: bool,
}

impl Names {
    pub(crate) fn start() -> Result<Self> {
        NameServer::start(NAME_SERVER.into()).map(Self).context("no name server")
    }

    fn set(&self, addresses: &[IpAddr]) {
        self.0.set(NAME, addresses);
    }
}

impl<'a> Scenario<'a> {
    /// All of them; those of names only with a name server.
    pub(crate) fn all(names: Option<&'a Names>) -> Vec<Self> {
        let mut all: Vec<_> = Behavior::FAULTS.map(Self::One).into();
        all.extend([
            Self::Flapping,
            Self::All(Behavior::Unavailable),
            Self::All(Behavior::Refuses),
            Self::All(Behavior::ResetBeforeHead),
        ]);
        if let Some(names) = names {
            all.push(Self::MovedName(names));
            all.push(Self::DeadFamily(names, Behavior::Refuses));
            all.push(Self::DeadFamily(names, Behavior::FullBacklog));
        }
        all
    }

    /// Starts its targets, which are good. `count` is the number of targets without names.
    pub(crate) fn start(&self, count: usize) -> Targets {
        let second: IpAddr = match self {
            Self::MovedName(_) => Ipv4Addr::new(127, 0, 0, 2).into(),
            Self::DeadFamily(..) => Ipv4Addr::LOCALHOST.into(),
            Self::One(_) | Self::All(_) | Self::Flapping => {
                let (targets, record) = FaultTarget::start(count);
                let authorities = targets.iter().map(|target| target.address.to_string()).collect();
                let faulty = if matches!(self, Self::All(_)) { count } else { 1 };
                return Targets { all: targets, faulty, record, authorities, is_named: false };
            }
        };
        let first: IpAddr = match self {
            Self::DeadFamily(..) => Ipv6Addr::LOCALHOST.into(),
            _ => Ipv4Addr::LOCALHOST.into(),
        };
        match self {
            Self::MovedName(names) => names.set(&[first]),
            Self::DeadFamily(names, _) => names.set(&[first, second]),
            _ => {}
        }
        let (record, port) = (Arc::<Record>::default(), free_port());
        let start = |(number, address)| {
            FaultTarget::start_at(SocketAddr::new(address, port), number, record.clone())
        };
        let targets = [first, second].into_iter().enumerate().map(start).collect();
        let authorities = vec![format!("{NAME}:{port}")];
        Targets { all: targets, faulty: 1, record, authorities, is_named: true }
    }

    /// The fault, for `duration`; then all targets are good.
    pub(crate) fn run(&self, targets: &Targets, duration: Duration) {
        let set = |behavior| {
            for target in &targets.all[..targets.faulty] {
                target.set(behavior);
            }
        };
        match self {
            Self::One(behavior) | Self::All(behavior) | Self::DeadFamily(_, behavior) => {
                set(*behavior);
                thread::sleep(duration);
            }
            Self::MovedName(names) => {
                set(Behavior::Refuses);
                names.set(&[targets.all[1].address.ip()]);
                thread::sleep(duration);
            }
            Self::Flapping => {
                let end = Instant::now() + duration;
                for behavior in [Behavior::Refuses, Behavior::Good].into_iter().cycle() {
                    set(behavior);
                    let rest = end.saturating_duration_since(Instant::now());
                    thread::sleep(rest.min(FLAP));
                    if rest <= FLAP {
                        break;
                    }
                }
            }
        }
        set(Behavior::Good);
    }

    /// What counts the attempts that no target sees.
    pub(crate) fn unseen_attempts(&self) -> Option<KernelCount> {
        match self {
            Self::One(Behavior::Refuses)
            | Self::All(Behavior::Refuses)
            | Self::DeadFamily(_, Behavior::Refuses)
            | Self::Flapping
            | Self::MovedName(_) => Some(KernelCount::Refused),
            Self::One(Behavior::FullBacklog) | Self::DeadFamily(_, Behavior::FullBacklog) => {
                Some(KernelCount::Overflowed)
            }
            _ => None,
        }
    }

    /// Whether there is a fault to be found, of one target, without an end before the scenario's.
    pub(crate) fn is_findable(&self) -> bool {
        match self {
            Self::One(behavior) => {
                !matches!(behavior, Behavior::SlowHead | Behavior::SlowBody | Behavior::WrongLength)
            }
            Self::All(_) | Self::Flapping => false,
            Self::MovedName(_) | Self::DeadFamily(..) => true,
        }
    }

    /// Whether the failing target is used after the scenario.
    pub(crate) fn is_used_again(&self) -> bool {
        !matches!(self, Self::MovedName(_))
    }
}

impl fmt::Display for Scenario<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(behavior) => write!(f, "{behavior}"),
            Self::All(behavior) => write!(f, "{behavior}, all targets"),
            Self::Flapping => f.write_str("flapping"),
            Self::MovedName(_) => f.write_str("moved name"),
            Self::DeadFamily(_, behavior) => write!(f, "dead family, {behavior}"),
        }
    }
}
