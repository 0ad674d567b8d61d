//! The one lock of this module: `parking_lot`'s, and loom's where loom explores the interleavings.

#[cfg(not(all(test, feature = "loom")))]
pub(super) use parking_lot::Mutex;

#[cfg(all(test, feature = "loom"))]
pub(super) use self::explored::Mutex;

#[cfg(all(test, feature = "loom"))]
mod explored {
    use loom::sync::{Mutex as Inner, MutexGuard};

    /// Loom's mutex, with `parking_lot`'s interface.
    pub(in super::super) struct Mutex<T>(Inner<T>);

    impl<T> Mutex<T> {
        pub(in super::super) fn new(value: T) -> Self {
            Self(Inner::new(value))
        }

        pub(in super::super) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("no model panics under the lock")
        }
    }
}
