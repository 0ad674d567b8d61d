use testkit::{options::redis_options, random::SplitMix64, redis_server::RedisServer};
use tidegate::clock::ms;
use tidegate::{
    clock::{Clock, StoreTime},
    redis::{RedisFailure, Topology},
    store::CounterStore,
    throttle::waiting_room::{
        EpochIndex, QueueTime, RedisRoomStore, RoomEpoch, RoomStore, UnixSecond,
        counts::IntervalCount,
        state::{RoomCall, RoomReply, RoomState, Seat, Standing},
    },
    time::Millis,
};

use crate::support::NOW;

/// The length of an epoch.
const LENGTH: Millis = Millis::from_secs(30);

const STANDINGS: [Standing; 4] =
    [Standing::Silent, Standing::Calm, Standing::Forced, Standing::Demanded];

fn store(redis: &RedisServer, clock: &Clock) -> RedisRoomStore {
    let options = redis_options(Topology::one(redis.url()));
    let counters = CounterStore::redis(options, clock.clone(), 10).expect("usable options");
    RedisRoomStore::new(counters.connector().expect("a Redis"), "active", clock.clone())
}

/// A random number below `bound`.
fn below(random: &mut SplitMix64, bound: u64) -> u64 {
    random.next_u64() % bound
}

/// A random call of a gateway at `now`, whose clock may be a second behind.
fn random_call(random: &mut SplitMix64, now: StoreTime) -> RoomCall {
    let second = UnixSecond::of(now).before(Millis::from_secs(below(random, 2)));
    let epoch = RoomEpoch::at(second, LENGTH);
    let mut counts = |most: u64| {
        let number = below(random, 5);
        let count = |_| {
            let ago = [5, 40, 1_000, 200_000][below(random, 4) as usize];
            let second = second.before(Millis::from_secs(below(random, ago)));
            IntervalCount { second, tickets: below(random, most) }
        };
        (0..number).map(count).collect::<Vec<_>>()
    };
    let counted = [counts(20), counts(200)];
    RoomCall {
        epoch,
        counted,
        standing: STANDINGS[[0, 1, 2, 3, 3, 3, 3, 3][below(random, 8) as usize]],
        active: Some(below(random, 1_100)).filter(|_| !random.next_u64().is_multiple_of(4)),
        max_active: 1_000,
        frontier: QueueTime::of_second(second.before(Millis::from_secs(below(random, 300)))),
        hold: Millis::from_secs(65),
        ask: Millis::from_secs([20, 6, 1][below(random, 3) as usize]),
        entering: below(random, 3),
        turned_away: below(random, 2) * below(random, 9),
        head_start: Millis::from_mins([0, 0, 1, 5][below(random, 4) as usize]),
        share: 1,
    }
}

/// Calls the store, and the state in this process; both must reply alike.
async fn assert_alike(
    store: &mut RedisRoomStore,
    state: &mut RoomState,
    call: &RoomCall,
    now: StoreTime,
) -> RoomReply {
    let reply = store.exchange(call).await.expect("a reply");
    assert_eq!(reply, state.exchange(call, now), "{call:?}");
    reply
}

/// Lets random users take places in both; both must answer alike. Returns how many got one.
async fn claim_alike(
    store: &mut RedisRoomStore,
    state: &mut RoomState,
    random: &mut SplitMix64,
    now: StoreTime,
) -> usize {
    // Some of them ask again, and some hashes do not fit a float.
    let holder = |_| u64::MAX - random.next_u64() % 3_000;
    let holders: Vec<u64> = (0..40).map(holder).collect();
    let seats = store.claim(LENGTH, &holders).await.expect("seats");
    assert_eq!(seats, state.claim(&holders, now), "{holders:?}");
    seats.into_iter().filter(|seat| *seat == Seat::Taken).count()
}

#[tokio::test]
async fn rust_and_lua_move_the_frontier_alike() {
    let redis = RedisServer::start();
    let (mut moved, mut taken) = (0, 0);
    for seed in 0..12 {
        redis.command::<()>(&["FLUSHALL"]);
        let clock = Clock::manual(NOW);
        let (mut store, mut state) = (store(&redis, &clock), RoomState::default());
        let mut random = SplitMix64(seed);
        let mut turns = 0;
        for _ in 0..250 {
            // Rarely, time passes without any call, or the clock is set back.
            let step = [50, 900, 900, 1_500, 1_500][below(&mut random, 5) as usize];
            let now = if random.next_u64().is_multiple_of(97) {
                clock.store_time().before(ms(below(&mut random, 25_000)))
            } else {
                let is_gap = random.next_u64().is_multiple_of(120);
                clock.store_time() + if is_gap { ms(40_000) } else { ms(below(&mut random, step)) }
            };
            clock.set(now);
            let call = random_call(&mut random, now);
            let reply = assert_alike(&mut store, &mut state, &call, now).await;
            moved += u64::from(reply.turns > turns);
            turns = reply.turns;
            if random.next_u64().is_multiple_of(3) {
                taken += claim_alike(&mut store, &mut state, &mut random, now).await;
            }
        }
    }
    assert!(moved > 20 && taken > 1_000, "{moved} moves of the frontier, {taken} places");
}

#[tokio::test]
async fn an_exchange_is_one_call_of_a_bounded_size() {
    let redis = RedisServer::start();
    let clock = Clock::manual(NOW);
    let (mut store, mut state) = (store(&redis, &clock), RoomState::default());
    let second = UnixSecond::of(NOW);
    let ago = |seconds| second.before(Millis::from_secs(seconds));
    // A million tickets over ten hours.
    let tickets = |second| IntervalCount { second, tickets: 1_680 };
    let old: Vec<_> = (0..600).map(|minutes| tickets(ago(1 + minutes * 60))).collect();
    let call = |counted, second| RoomCall {
        epoch: RoomEpoch::at(second, LENGTH),
        counted,
        standing: Standing::Demanded,
        active: None,
        max_active: 1_000,
        frontier: QueueTime::of_second(ago(36_000)),
        hold: Millis::from_secs(65),
        ask: Millis::from_secs(20),
        entering: 0,
        turned_away: 0,
        head_start: Millis::ZERO,
        share: 1,
    };
    assert_alike(&mut store, &mut state, &call([vec![], old], second), NOW).await;
    clock.set(NOW + ms(30_000));
    let next = call([vec![], vec![]], second.after(LENGTH));
    let reply = assert_alike(&mut store, &mut state, &next, clock.store_time()).await;
    assert_eq!(reply.waiting(), 1_008_000);
    assert!(reply.profile.len() < 150, "{} points", reply.profile.len());
    let before = redis.script_calls();
    for _ in 0..10 {
        assert_alike(&mut store, &mut state, &next, clock.store_time()).await;
    }
    assert_eq!(redis.script_calls() - before, 10);
    let keys: Vec<String> = redis.command(&["KEYS", "*:room:*"]);
    assert!(keys.len() == 4 && keys.iter().all(|key| key.contains("{active}:room:30")), "{keys:?}");
    let EpochIndex(index) = next.epoch.previous().index;
    let len: u64 = redis.command(&["HLEN", &format!("tidegate:{{active}}:room:30:{index}")]);
    assert!(len < 800, "{len} intervals");
}

#[tokio::test]
async fn overwritten_and_malformed_keys_are_replaced() {
    let redis = RedisServer::start();
    let clock = Clock::manual(NOW);
    let mut store = store(&redis, &clock);
    let mut random = SplitMix64(1);
    let call = random_call(&mut random, NOW);
    let EpochIndex(index) = call.epoch.index;
    let state = "tidegate:{active}:room:30".to_owned();
    let counts = format!("{state}:{index}");
    redis.command::<()>(&["SET", &state, "junk"]);
    redis.command::<()>(&["SET", &counts, "junk"]);
    store.exchange(&call).await.expect("a reply");
    for (field, value) in [
        ("frontier", "9007199254740991"),
        ("frontier", "-5"),
        ("epoch", "9007199254740991"),
        ("passed", "a:b,7:,9007199254740993:5"),
        ("taken", "junk"),
        ("came", "5:9007199254740993,"),
        ("seats", "1e300"),
        ("period_length", "-1"),
        ("average_came", "nan"),
        ("entering", "x"),
        ("moved_at", "nan"),
        ("pending", "1e300"),
        ("complete_from", "x"),
    ] {
        redis.command::<()>(&["HSET", &state, field, value]);
        redis.command::<()>(&["HSET", &counts, "junk", "5", "7", "-9", "999999", "5"]);
        let reply =
            store.exchange(&call).await.unwrap_or_else(|failure| panic!("{field}: {failure:?}"));
        assert!(reply.frontier <= QueueTime::at(NOW), "{field}: {reply:?}");
        assert!(reply.frontier >= call.frontier, "{field}: {reply:?}");
        redis.command::<()>(&["SET", &format!("{state}:users"), "junk"]);
        store.claim(LENGTH, &[1, 2]).await.unwrap_or_else(|failure| panic!("{field}: {failure:?}"));
    }
    redis.command::<()>(&["HSET", &state, "profile", "junk"]);
    clock.set(NOW + ms(10));
    let outcome = store.exchange(&call).await;
    assert!(matches!(outcome, Ok(_) | Err(RedisFailure::Reply)), "{outcome:?}");
}
