//! Reads what callgrind has counted.

use hashbrown::HashMap;

/// What callgrind counted between two dumps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Profile {
    /// User instructions.
    pub(crate) instructions: u64,
    /// Calls of an allocator: for new memory, or for more of it.
    pub(crate) allocations: u64,
}

impl Profile {
    /// Reads a profile in callgrind's format; `None` where it is none.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let instructions = text.lines().find_map(|line| line.strip_prefix("summary:"))?;
        Some(Self { instructions: instructions.trim().parse().ok()?, allocations: calls(text) })
    }
}

/// Counts the calls from elsewhere into an allocator.
fn calls(text: &str) -> u64 {
    let mut known = HashMap::new();
    let (mut caller, mut callee, mut total) = (false, false, 0);
    for line in text.lines() {
        // A function is a number, and has its name behind it where it stands first.
        let mut is_allocator = |function| {
            let (number, name) = str::split_once(function, ' ').unwrap_or((function, ""));
            *known.entry(number).or_insert_with(|| allocates(name))
        };
        if let Some(function) = line.strip_prefix("fn=") {
            caller = is_allocator(function);
        } else if let Some(function) = line.strip_prefix("cfn=") {
            callee = is_allocator(function);
        } else if let Some(calls) = line.strip_prefix("calls=")
            && callee
            && !caller
        {
            let count = calls.split(' ').next().and_then(|count| count.parse::<u64>().ok());
            total += count.unwrap_or_default();
        }
    }
    total
}

/// Whether `name` is an allocator's function that gives memory. Recursive ones have a suffix.
fn allocates(name: &str) -> bool {
    let name = name.split('\'').next().unwrap_or_default();
    let name = name.trim_start_matches("mi_").trim_start_matches("heap_");
    let name = name.trim_end_matches("_aligned");
    matches!(
        name,
        "malloc" | "zalloc" | "calloc" | "realloc" | "rezalloc" | "posix_memalign" | "memalign"
    )
}
