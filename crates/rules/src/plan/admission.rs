//! What the limits and the throttle said of a request.

/// The limits' decision on a request, as the access log, `explain` and `replay` report it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Admission {
    /// The request ended before its limits were checked.
    #[default]
    NotChecked,
    /// No limit applies to the request.
    Unlimited,
    /// Every enforced limit admits it.
    Admitted,
    /// A limit refuses it.
    Refused,
    /// The block of a limit refuses it.
    Blocked,
    /// The route does not admit the client's address.
    Denied,
    /// The throttle refuses it.
    Throttled,
    /// Redis gave no answer, and a limit refuses in that case.
    Unknown,
}

impl Admission {
    /// True if limits decided, so that the response has rate-limit headers.
    pub fn is_decided(self) -> bool {
        matches!(self, Self::Admitted) || self.is_refused()
    }

    /// True if a limit or its block refuses.
    pub fn is_refused(self) -> bool {
        matches!(self, Self::Refused | Self::Blocked)
    }

    /// The value in the access log, `explain` and `replay`.
    pub fn label(self) -> &'static str {
        match self {
            Self::NotChecked => "not_checked",
            Self::Unlimited => "none",
            Self::Admitted => "admitted",
            Self::Refused => "refused",
            Self::Blocked => "blocked",
            Self::Denied => "denied",
            Self::Throttled => "throttled",
            Self::Unknown => "unknown",
        }
    }
}
