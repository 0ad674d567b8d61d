//! The mutex of this module: `parking_lot`'s, or loom's when loom explores interleavings.

#[cfg(not(all(test, feature = "loom")))]
pub(super) use parking_lot::Mutex;

#[cfg(all(test, feature = "loom"))]
pub(super) use self::explored::Mutex;

#[cfg(all(test, feature = "loom"))]
mod explored {
    use loom::sync::{Mutex as LoomMutex, MutexGuard};

    /// Loom's mutex with `parking_lot`'s interface.
    pub(in super::super) struct Mutex<T>(LoomMutex<T>);

    impl<T> Mutex<T> {
        pub(in super::super) fn new(value: T) -> Self {
            Self(LoomMutex::new(value))
        }

        pub(in super::super) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("no model panics while it holds the lock")
        }
    }
}
