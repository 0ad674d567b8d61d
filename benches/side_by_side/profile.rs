//! Parses profiles of callgrind.

use hashbrown::HashMap;

/// The counts of callgrind between two dumps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Profile {
    /// User instructions.
    pub(crate) instructions: u64,
    /// Calls that allocate or reallocate memory.
    pub(crate) allocations: u64,
}

impl Profile {
    /// Parses a profile in callgrind's format; `None` if it is malformed.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let instructions = text.lines().find_map(|line| line.strip_prefix("summary:"))?;
        Some(Self {
            instructions: instructions.trim().parse().ok()?,
            allocations: count_allocations(text),
        })
    }
}

/// Counts the calls of allocating functions, except those from allocating functions.
fn count_allocations(text: &str) -> u64 {
    let mut known = HashMap::new();
    let (mut caller, mut callee, mut total) = (false, false, 0);
    for line in text.lines() {
        // A function is identified by a number; its name follows only at the first occurrence.
        let mut is_allocator = |function| {
            let (number, name) = str::split_once(function, ' ').unwrap_or((function, ""));
            *known.entry(number).or_insert_with(|| is_allocating(name))
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

/// Whether `name` is a function that allocates memory. Recursive calls have a suffix.
fn is_allocating(name: &str) -> bool {
    let name = name.split('\'').next().unwrap_or_default();
    let name = name.trim_start_matches("mi_").trim_start_matches("heap_");
    let name = name.trim_end_matches("_aligned");
    matches!(
        name,
        "malloc" | "zalloc" | "calloc" | "realloc" | "rezalloc" | "posix_memalign" | "memalign"
    )
}
