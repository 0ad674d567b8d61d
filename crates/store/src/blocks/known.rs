//! [`KnownBlocks`]: the blocks that this process began or met, for the operator.

use std::{collections::BTreeMap, sync::Arc};

use hashbrown::HashMap;
use parking_lot::Mutex;
use tidegate_base::time::StoreTime;
use tidegate_charge::{Charge, Key, Limit};

use super::block_record;

/// Maximum number of blocks that are listed. Further ones are in force, but not listed.
const MAX_KNOWN: usize = 65_536;

/// A block that is in force.
#[derive(Clone, Debug)]
pub struct KnownBlock {
    /// The block of the limit; [`Limit::blocked_name`] is the limit's name.
    pub block: Arc<Limit>,
    /// The caller.
    pub key: Key,
    /// The first ms after the block.
    pub until: StoreTime,
}

/// The blocks in force, and the number of blocks begun by limit.
#[derive(Default)]
pub(crate) struct KnownBlocks(Mutex<Known>);

#[derive(Default)]
struct Known {
    blocks: HashMap<u128, KnownBlock, ahash::RandomState>,
    /// By the limit's name.
    begun: BTreeMap<Box<str>, u64>,
}

impl KnownBlocks {
    /// Records a block that is in force until `until`; `has_begun` if it began with a request of
    /// this process.
    pub(super) fn record(&self, block: &Charge<'_>, until: StoreTime, has_begun: bool) {
        let mut known = self.0.lock();
        if has_begun {
            *known.begun.entry(block.limit.blocked_name().into()).or_default() += 1;
        }
        let record = block_record(block);
        let is_new = !known.blocks.contains_key(&record);
        if is_new && known.blocks.len() >= MAX_KNOWN {
            return;
        }
        let known_block = KnownBlock { block: Arc::clone(block.limit), key: block.key, until };
        known.blocks.insert(record, known_block);
    }

    /// The blocks in force at `now`, those of a limit together, the first to end first.
    pub(crate) fn list(&self, now: StoreTime) -> Vec<KnownBlock> {
        let in_force = |known: &&KnownBlock| known.until > now;
        let mut list: Vec<_> = self.0.lock().blocks.values().filter(in_force).cloned().collect();
        list.sort_by(|one, other| {
            let order = |known: &KnownBlock| (known.until, known.key);
            let by_name = one.block.name().cmp(other.block.name());
            by_name.then_with(|| order(one).cmp(&order(other)))
        });
        list
    }

    /// The number of blocks that began with a request of this process, by limit.
    pub(crate) fn begun(&self) -> BTreeMap<Box<str>, u64> {
        self.0.lock().begun.clone()
    }

    /// Removes the blocks that have ended.
    pub(crate) fn expire(&self, now: StoreTime) {
        self.0.lock().blocks.retain(|_, known| known.until > now);
    }

    /// Removes the block of a record.
    pub(super) fn discard(&self, record: u128) {
        self.0.lock().blocks.remove(&record);
    }
}
