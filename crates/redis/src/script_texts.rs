//! The texts of the scripts that read and write records. The test kit also compiles this file, to
//! measure single calls.

/// Prepends the algorithms and the access to records to a script. A new algorithm is one line here.
macro_rules! with_records {
    ($($script:literal),+) => {
        concat!(
            include_str!("../../../lua/prelude.lua"),
            include_str!("../../../lua/sliding_window.lua"),
            include_str!("../../../lua/sliding_log.lua"),
            include_str!("../../../lua/fixed_window.lua"),
            include_str!("../../../lua/token_bucket.lua"),
            include_str!("../../../lua/leaky_bucket.lua"),
            include_str!("../../../lua/free_slots.lua"),
            include_str!("../../../lua/concurrency.lua"),
            include_str!("../../../lua/block.lua"),
            include_str!("../../../lua/record.lua"),
            $(include_str!($script)),+,
        )
    };
}

/// Charges all limits of a request, or none.
pub const CHARGE: &str = with_records!("../../../lua/charge.lua");

/// Charges units for a lease.
pub const ACQUIRE: &str = with_records!("../../../lua/acquire.lua");

/// Decides without charging.
pub const PEEK: &str = with_records!("../../../lua/peek.lua");

/// Adjusts charges of requests.
pub const ADJUST: &str = with_records!("../../../lua/adjust.lua");
