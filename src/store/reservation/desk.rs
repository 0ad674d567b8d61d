//! One worker's view of the book.

use std::{cell::RefCell, sync::Arc};

use super::{
    Book, Entry, Joined, Name, Taken, Waiter,
    atomics::{Atomics, Native},
};
use crate::limit::{Key, Limit, Millis};

/// Entries that a desk has at hand.
pub const SLOTS: usize = 1 << 11;

/// An entry, found by its name.
type Slot<W, A> = Option<(u128, Arc<Entry<W, A>>)>;

/// The entries that one worker used last, so that it finds them without a lock. One place for each name;
/// the later drives out the earlier.
pub struct Desk<W: Waiter, A: Atomics = Native> {
    book: Arc<Book<W, A>>,
    slots: RefCell<Box<[Slot<W, A>]>>,
}

impl<W: Waiter, A: Atomics> Desk<W, A> {
    /// An empty one.
    pub fn new(book: Arc<Book<W, A>>) -> Self {
        Self { book, slots: RefCell::new((0..SLOTS).map(|_| None).collect()) }
    }

    /// The book that it is a view of.
    pub fn book(&self) -> &Arc<Book<W, A>> {
        &self.book
    }

    /// Takes `cost` tokens (at least 1) at `ticks` if they are here: without a lock, without the store.
    pub fn take(&self, limit: &Limit, key: Key, cost: u32, ticks: u64) -> Option<Taken> {
        let Name { id, .. } = Name::of(limit, key);
        let slots = self.slots.borrow();
        match &slots[place(id)] {
            Some((name, entry)) if *name == id => entry.take(cost, ticks),
            _ => {
                drop(slots);
                self.entry(limit, key)?.take(cost, ticks)
            }
        }
    }

    /// Gives back what was taken here at `now` ([`Taken::now`]), as [`Entry::give_back`]: where it
    /// gives none, the store has to be told.
    pub fn give_back(
        &self,
        limit: &Limit,
        key: Key,
        now: Millis,
        cost: u32,
        ticks: u64,
    ) -> Option<Taken> {
        let entry = self.entry(limit, key)?;
        entry.give_back(now, cost, ticks).then(|| entry.told().taken(ticks, entry.spendable(ticks)))
    }

    /// Stands in line at `ticks`, after [`Self::take`] gave nothing. [`Joined::Gone`] if the book is full:
    /// then the request asks the store by itself.
    pub fn join(&self, limit: &Limit, key: Key, mut waiter: W, ticks: u64) -> Joined<W, A> {
        loop {
            let Some(entry) = self.entry(limit, key) else { return Joined::Gone(waiter) };
            match entry.join(waiter, ticks) {
                // It left the book just now; the next is another one.
                Joined::Gone(back) => waiter = back,
                joined => return joined,
            }
        }
    }

    /// The entry of `key` under `limit`, from its place here or from the book.
    pub fn entry(&self, limit: &Limit, key: Key) -> Option<Arc<Entry<W, A>>> {
        let Name { id, .. } = Name::of(limit, key);
        let slot = &mut self.slots.borrow_mut()[place(id)];
        if let Some((name, entry)) = slot
            && *name == id
            && !entry.is_retired()
        {
            return Some(Arc::clone(entry));
        }
        // It may be one that has left the book, and is let go.
        *slot = None;
        let entry = self.book.entry(limit, key)?;
        *slot = Some((id, Arc::clone(&entry)));
        Some(entry)
    }
}

fn place(id: u128) -> usize {
    id as usize % SLOTS
}
