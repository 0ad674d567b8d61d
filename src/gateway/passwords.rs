//! [`PasswordVerifier`]: verifies passwords on a thread of its own, because that takes milliseconds to a second.

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
    thread,
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use crate::{
    auth::{BasicCredentials, PasswordProof, ProofCache, ProofDigest, is_password_of},
    clock::Clock,
    identity::OwnedConsumer,
};

/// How long a right password is known as such.
const KNOWN_TIME: Duration = Duration::from_mins(5);
/// Maximum number of passwords that wait.
const MAX_WAITING: usize = 256;
/// Maximum number of passwords of one client address that wait: further ones would hold up other clients.
const MAX_WAITING_OF_ADDRESS: usize = 8;

/// Verifies passwords. A right one is known for five minutes, as a keyed hash.
#[derive(Default)]
pub struct PasswordVerifier(OnceLock<Arc<PasswordThread>>);

/// A password that is to be verified.
pub(super) struct PendingPassword {
    digest: ProofDigest,
    credentials: BasicCredentials,
    hash: Box<str>,
    /// The consumer, if the password is right; `None` for an unknown name.
    pub(super) consumer: Option<OwnedConsumer>,
}

/// Too many passwords wait.
pub(super) struct TooManyPasswords;

struct PasswordThread {
    clock: Clock,
    known: ProofCache<()>,
    queue: Mutex<PasswordQueue>,
    /// Notified when a password is added, and when the queue is closed.
    changed: Condvar,
}

#[derive(Default)]
struct PasswordQueue {
    waiting: VecDeque<PasswordJob>,
    is_closed: bool,
}

struct PasswordJob {
    /// The client's address, hashed.
    address: u128,
    digest: ProofDigest,
    credentials: BasicCredentials,
    hash: Box<str>,
    /// The requests that wait for it: several may have the same password.
    replies: Vec<oneshot::Sender<bool>>,
}

impl PasswordVerifier {
    /// True if the password of `proof` was right within the last five minutes; else, what to verify.
    pub(super) fn recall(
        &self,
        proof: &PasswordProof<'_>,
        clock: &Clock,
    ) -> Result<(), PendingPassword> {
        let thread = self.0.get_or_init(|| PasswordThread::start(clock.clone()));
        let credentials = proof.credentials;
        let account = credentials.account().unwrap_or_default().as_bytes();
        // With the hash, so that a new password ends the old one's.
        let parts = [account, credentials.password(), proof.hash.as_bytes()];
        let digest = thread.known.digest(parts);
        if proof.consumer.is_some() && thread.known.get(digest, clock.monotonic()).is_some() {
            return Ok(());
        }
        Err(PendingPassword {
            digest,
            credentials: credentials.clone(),
            hash: proof.hash.into(),
            consumer: proof.consumer.map(OwnedConsumer::from),
        })
    }

    /// True if the password is right. `address` is the hash of the client's address.
    ///
    /// # Errors
    ///
    /// Too many passwords wait, in all or of this address.
    pub(super) async fn verify(
        &self,
        pending: PendingPassword,
        address: u128,
    ) -> Result<bool, TooManyPasswords> {
        let thread = self.0.get().ok_or(TooManyPasswords)?;
        let PendingPassword { digest, credentials, hash, .. } = pending;
        let (reply, answer) = oneshot::channel();
        thread.add(PasswordJob { address, digest, credentials, hash, replies: vec![reply] })?;
        answer.await.map_err(|_| TooManyPasswords)
    }
}

impl Drop for PasswordVerifier {
    fn drop(&mut self) {
        if let Some(thread) = self.0.get() {
            thread.queue.lock().is_closed = true;
            thread.changed.notify_one();
        }
    }
}

impl PasswordThread {
    fn start(clock: Clock) -> Arc<Self> {
        let queue = Mutex::default();
        let own =
            Arc::new(Self { clock, known: ProofCache::new(), queue, changed: Condvar::new() });
        let thread = Arc::clone(&own);
        let spawned =
            thread::Builder::new().name("passwords".to_owned()).spawn(move || thread.run());
        if let Err(error) = spawned {
            own.queue.lock().is_closed = true;
            tracing::error!(%error, "no thread for passwords could be started: they cannot be verified");
        }
        own
    }

    fn add(&self, mut job: PasswordJob) -> Result<(), TooManyPasswords> {
        let mut queue = self.queue.lock();
        if let Some(same) = queue.waiting.iter_mut().find(|other| other.digest == job.digest) {
            // One verification is enough, and takes one place.
            same.replies.append(&mut job.replies);
            return Ok(());
        }
        let of_address = queue.waiting.iter().filter(|other| other.address == job.address).count();
        if queue.is_closed
            || queue.waiting.len() >= MAX_WAITING
            || of_address >= MAX_WAITING_OF_ADDRESS
        {
            return Err(TooManyPasswords);
        }
        queue.waiting.push_back(job);
        self.changed.notify_one();
        Ok(())
    }

    fn next(&self) -> Option<PasswordJob> {
        let mut queue = self.queue.lock();
        loop {
            if queue.is_closed {
                return None;
            }
            if let Some(job) = queue.waiting.pop_front() {
                return Some(job);
            }
            self.changed.wait(&mut queue);
        }
    }

    fn run(&self) {
        while let Some(PasswordJob { digest, credentials, hash, replies, .. }) = self.next() {
            if replies.iter().all(oneshot::Sender::is_closed) {
                continue;
            }
            // A request with the same password may have been before this one.
            let is_known = self.known.get(digest, self.clock.monotonic()).is_some();
            let is_right = is_known || is_password_of(&hash, credentials.password());
            if is_right && !is_known {
                let until = self.clock.monotonic() + KNOWN_TIME.as_millis() as u64;
                self.known.insert(digest, until, ());
            }
            for reply in replies {
                // The client may have gone.
                let _ = reply.send(is_right);
            }
        }
    }
}
