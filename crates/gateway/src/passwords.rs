//! [`PasswordVerifier`]: verifies passwords on a thread of its own, because that takes milliseconds
//! to a second.

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
    thread,
};

use parking_lot::{Condvar, Mutex};
use tidegate_access::auth::{
    BasicCredentials, PasswordProof, ProofCache, ProofDigest, is_password_of,
};
use tidegate_base::time::Millis;
use tidegate_identity::OwnedConsumer;
use tidegate_system::clock::Clock;
use tokio::sync::oneshot;

/// How long a right password is known as such.
const KNOWN_TIME: Millis = Millis::from_mins(5);
/// Maximum number of passwords that wait.
const MAX_WAITING: usize = 256;
/// Maximum number of passwords of one client address that wait: further ones would hold up other
/// clients.
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
    /// If the name is a consumer's.
    account: Account,
    /// The requests that wait for it: several may have the same password.
    replies: Vec<oneshot::Sender<bool>>,
}

/// If a name is a consumer's.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Account {
    Known,
    Unknown,
}

impl PasswordVerifier {
    /// True if the password of `proof` was right within the last five minutes; else, what to
    /// verify.
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
        let PendingPassword { digest, credentials, hash, consumer } = pending;
        let account = if consumer.is_some() { Account::Known } else { Account::Unknown };
        let (reply, answer) = oneshot::channel();
        let replies = vec![reply];
        thread.add(PasswordJob { address, digest, credentials, hash, account, replies })?;
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
        while let Some(job) = self.next() {
            let PasswordJob { digest, credentials, hash, account, replies, .. } = job;
            if replies.iter().all(oneshot::Sender::is_closed) {
                continue;
            }
            // A request with the same password may have been before this one.
            let is_known = self.known.get(digest, self.clock.monotonic()).is_some();
            let is_right = is_known || is_password_of(&hash, credentials.password());
            // With an unknown name, the hash is another consumer's: a quick refusal would tell its
            // password.
            if is_right && !is_known && account == Account::Known {
                let until = self.clock.monotonic() + KNOWN_TIME;
                self.known.insert(digest, until, ());
            }
            for reply in replies {
                // The client may have gone.
                let _ = reply.send(is_right);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use tidegate_identity::Consumer;

    use super::*;

    const HASH: &str = "$2y$04$ZTWSX.0UDtfHZJGRcCTlB.dkC9j.jI8zkjfa/2ndeFU.GgjBofqQG";

    /// Verifies the right password of the hash twice. True if the second time takes no wait.
    fn is_remembered(name: &str, consumer: Option<Consumer<'_>>) -> bool {
        let value = format!("Basic {}", STANDARD.encode(format!("{name}:open sesame")));
        let credentials = BasicCredentials::read(value.as_bytes()).unwrap().unwrap();
        let proof = PasswordProof { credentials: &credentials, hash: HASH, consumer };
        let (verifier, clock) = (PasswordVerifier::default(), Clock::system());
        let pending = verifier.recall(&proof, &clock).expect_err("a wait");
        let digest = pending.digest;
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert!(runtime.block_on(verifier.verify(pending, 1)).is_ok_and(|is_right| is_right));
        let thread = verifier.0.get().unwrap();
        let is_known = thread.known.get(digest, clock.monotonic()).is_some();
        assert_eq!(verifier.recall(&proof, &clock).is_ok(), is_known);
        is_known
    }

    #[test]
    fn only_the_password_of_a_consumer_is_remembered() {
        assert!(is_remembered("acme", Some(Consumer::new("acme", None))));
        // The hash is another consumer's then: a quick second refusal would tell that its password
        // is right.
        assert!(!is_remembered("unknown", None));
    }
}
