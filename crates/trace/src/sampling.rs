//! Decides which requests are sampled.

use super::{IdSource, RequestTrace, SpanContext, TraceParent};
pub use tidegate_vocabulary::ParentTrust;

use tidegate_base::time::Uptime;

/// The number of random bits at the end of a trace's id (W3C Trace Context). They decide if the
/// trace is sampled.
const RANDOM_BITS: u32 = 56;
/// Longest recorded `tracestate`, in bytes: the minimum that W3C Trace Context requires.
const MAX_STATE: usize = 512;

/// The rules by which requests are sampled.
#[derive(Clone, Copy, Debug)]
pub struct SamplingRules {
    /// A trace is sampled if its random bits are at least this.
    threshold: u64,
    trust: ParentTrust,
}

/// The trace context that a request arrived with.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceivedContext<'r> {
    /// The value of the only `traceparent`.
    pub parent: Option<&'r [u8]>,
    /// The value of the first `tracestate`.
    pub state: Option<&'r [u8]>,
    /// True if the peer is a trusted proxy.
    pub is_trusted: bool,
}

/// When a request began.
#[derive(Clone, Copy, Debug)]
pub struct RequestStart {
    /// By the clock's uptime.
    pub uptime: Uptime,
    /// By the time of day.
    pub time: UnixNanos,
}

/// A time of day in ns since the Unix epoch, as spans have it.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct UnixNanos(u64);

impl UnixNanos {
    /// The time `nanos` ns after the epoch.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The ns since the epoch, for encoding.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }
}

/// The result of [`SamplingRules::begin`].
#[derive(Debug, Default)]
pub enum SamplingDecision {
    /// The request is not sampled, and the client's fields are forwarded unchanged.
    #[default]
    Forwarded,
    /// The request is not sampled, and gets a new context, so that upstreams do not sample it
    /// either.
    Unsampled(SpanContext),
    /// The request is sampled.
    Sampled(Box<RequestTrace>),
}

/// The trace context that replaces the client's in a forwarded request.
#[derive(Clone, Copy, Debug)]
pub struct TraceHeader {
    /// The value of `traceparent`.
    pub parent: TraceParent,
    /// True if the client's `tracestate` is forwarded, because its trace continues.
    pub keeps_state: bool,
}

impl SamplingRules {
    /// Samples this share, 0 to 1, of the requests without a trusted sender.
    pub fn new(share: f64, trust: ParentTrust) -> Self {
        let all = 1_u64 << RANDOM_BITS;
        let sampled = (share.clamp(0.0, 1.0) * all as f64) as u64;
        Self { threshold: all - sampled, trust }
    }

    /// Decides for one request. The flag of a trusted sender decides. A request from any other
    /// sender begins a new trace, whatever the sender's ids and flag.
    pub fn begin(
        &self,
        received: ReceivedContext<'_>,
        ids: &IdSource,
        start: impl FnOnce() -> RequestStart,
    ) -> SamplingDecision {
        let parent = received.parent.and_then(TraceParent::parse);
        let is_followed = match self.trust {
            ParentTrust::All => true,
            ParentTrust::TrustedProxies => received.is_trusted,
            ParentTrust::None => false,
        };
        if let Some(parent) = parent.filter(|_| is_followed) {
            if !parent.is_sampled {
                return SamplingDecision::Forwarded;
            }
            let context = SpanContext { span_id: ids.span_id(), ..parent.context };
            let state = received.state.filter(|state| state.len() <= MAX_STATE);
            let state = state.and_then(|state| std::str::from_utf8(state).ok()).map(Box::from);
            let mut trace = RequestTrace::new(context, start());
            trace.parent = Some(parent.context.span_id);
            trace.state = state;
            return SamplingDecision::Sampled(Box::new(trace));
        }
        let context = ids.context();
        let random = context.trace_id as u64 & ((1 << RANDOM_BITS) - 1);
        if random < self.threshold {
            return SamplingDecision::Unsampled(context);
        }
        let mut trace = RequestTrace::new(context, start());
        trace.link = parent.map(|parent| parent.context);
        SamplingDecision::Sampled(Box::new(trace))
    }
}

impl SamplingDecision {
    /// The trace of a sampled request.
    #[inline]
    pub fn sampled(&mut self) -> Option<&mut RequestTrace> {
        match self {
            Self::Sampled(trace) => Some(trace),
            Self::Forwarded | Self::Unsampled(_) => None,
        }
    }

    /// The trace's id if the request is sampled.
    pub fn sampled_id(&self) -> Option<[u8; 32]> {
        match self {
            Self::Sampled(trace) => Some(trace.context.trace_id_text()),
            Self::Forwarded | Self::Unsampled(_) => None,
        }
    }

    /// The trace context to forward; `None` keeps the client's.
    pub fn header(&self) -> Option<TraceHeader> {
        let (context, is_sampled, keeps_state) = match self {
            Self::Forwarded => return None,
            Self::Unsampled(context) => (*context, false, false),
            Self::Sampled(trace) => (trace.context, true, trace.parent.is_some()),
        };
        Some(TraceHeader { parent: TraceParent { context, is_sampled }, keeps_state })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLED: &[u8] = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const NOT_SAMPLED: &[u8] = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

    fn begin(rules: SamplingRules, parent: Option<&[u8]>, is_trusted: bool) -> SamplingDecision {
        let received = ReceivedContext { parent, state: Some(b"a=1"), is_trusted };
        let start = || RequestStart { uptime: Uptime::ZERO, time: UnixNanos::default() };
        rules.begin(received, &IdSource::default(), start)
    }

    #[test]
    fn a_followed_sender_decides() {
        for share in [0.0, 1.0] {
            let rules = SamplingRules::new(share, ParentTrust::TrustedProxies);
            let SamplingDecision::Sampled(trace) = begin(rules, Some(SAMPLED), true) else {
                panic!()
            };
            assert_eq!(trace.context.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
            assert_eq!(trace.parent, Some(0x00f0_67aa_0ba9_02b7));
            assert_eq!((trace.link, trace.state.as_deref()), (None, Some("a=1")));
            assert_ne!(trace.context.span_id, 0x00f0_67aa_0ba9_02b7);
            assert!(matches!(begin(rules, Some(NOT_SAMPLED), true), SamplingDecision::Forwarded));
        }
    }

    #[test]
    fn another_sender_decides_nothing() {
        for parent in [None, Some(SAMPLED), Some(NOT_SAMPLED), Some(&b"00-0-0-01"[..])] {
            for trust in [ParentTrust::TrustedProxies, ParentTrust::None] {
                let never = begin(SamplingRules::new(0.0, trust), parent, false);
                let header = never.header().expect("a context");
                assert!(!header.parent.is_sampled && !header.keeps_state);
                assert!(matches!(never, SamplingDecision::Unsampled(_)));
                let always = begin(SamplingRules::new(1.0, trust), parent, false);
                let header = always.header().expect("a context");
                assert!(header.parent.is_sampled && !header.keeps_state);
                let SamplingDecision::Sampled(trace) = always else { panic!() };
                assert_eq!((trace.parent, trace.state.as_deref()), (None, None));
                let valid = parent.and_then(TraceParent::parse).map(|parent| parent.context);
                assert_eq!(trace.link, valid);
                assert_ne!(Some(trace.context.trace_id), valid.map(|valid| valid.trace_id));
            }
        }
    }

    #[test]
    fn the_share_is_the_configured_one() {
        let (rules, ids) = (SamplingRules::new(0.1, ParentTrust::All), IdSource::default());
        let received = ReceivedContext { parent: None, state: None, is_trusted: false };
        let start = || RequestStart { uptime: Uptime::ZERO, time: UnixNanos::default() };
        let begun = (0..100_000).map(|_| rules.begin(received, &ids, start));
        let sampled =
            begun.filter(|tracing| matches!(tracing, SamplingDecision::Sampled(_))).count();
        // The standard deviation is 95.
        assert!((9_500..10_500).contains(&sampled), "{sampled}");
    }
}
