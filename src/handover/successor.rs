//! [`Successor`] and [`Predecessor`]: the two ends of a handover.
//!
//! Over the stream, the old process sends messages of one byte, each with some of its sockets
//! (`SCM_RIGHTS`). The last message has no sockets; its byte names the owner of the unix sockets'
//! files: the gateway or a service manager. The new process sends one byte when it accepts
//! connections.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, IoSlice, IoSliceMut, Write},
    mem::{ManuallyDrop, MaybeUninit},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::{Child, Command},
    time::Duration,
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::{PassedSockets, SocketFiles, SocketSource};

/// The environment variable by which a process learns that its standard input is a handover.
pub const VARIABLE: &str = "TIDEGATE_HANDOVER";

/// Variables for this process alone, which a successor does not get.
const OWN_VARIABLES: [&str; 4] = ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_PID"];
/// The most sockets of a message; the kernel takes 253.
const BATCH: usize = 64;
/// The byte of a message with sockets.
const SOCKETS: u8 = b's';
/// The byte that the new process sends when it accepts connections.
const READY: u8 = b'r';
/// The bytes of the last message: the files of unix sockets belong to the gateway, or to a service
/// manager.
const END: [u8; 2] = [b'.', b'm'];
/// Longest wait of either side for the other while sockets are sent.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// The new process, as the old one sees it.
#[derive(Debug)]
pub struct Successor {
    process: Child,
    stream: UnixStream,
}

impl Successor {
    /// Starts the program with `arguments`, which begin with its name, and sends it `sockets`.
    ///
    /// # Errors
    ///
    /// The program cannot be started, or did not take the sockets.
    pub fn start(
        arguments: &[OsString],
        sockets: &[OwnedFd],
        files: SocketFiles,
    ) -> io::Result<Self> {
        let (stream, other) = UnixStream::pair()?;
        let missing = || io::Error::new(io::ErrorKind::NotFound, "the program's name is not known");
        let (program, arguments) = arguments.split_first().ok_or_else(missing)?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(OwnedFd::from(other)).env(VARIABLE, "1");
        for name in OWN_VARIABLES {
            command.env_remove(name);
        }
        let process = command.spawn()?;
        // Closes this process's copy of the other end of the stream: otherwise the exit of the new
        // process would go unnoticed.
        drop(command);
        let successor = Self { process, stream };
        match send(&successor.stream, sockets, files) {
            Ok(()) => Ok(successor),
            Err(error) => {
                successor.end();
                Err(error)
            }
        }
    }

    /// The id of the process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns when the process accepts connections.
    ///
    /// # Errors
    ///
    /// The process has ended, has closed its standard input, or is another program.
    pub async fn wait_ready(&self) -> io::Result<()> {
        let stream = self.stream.try_clone()?;
        stream.set_nonblocking(true)?;
        let mut stream = tokio::net::UnixStream::from_std(stream)?;
        match tokio::io::AsyncReadExt::read_u8(&mut stream).await? {
            READY => Ok(()),
            _ => Err(io::Error::other("it is not a gateway that takes over")),
        }
    }

    /// Kills the process.
    pub fn end(mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The old process, as the new one sees it. Unless [`Self::report_ready`] is called, the stream
/// stays open until this process exits: the old one must not read end-of-file before this one has
/// written its last log line.
#[derive(Debug)]
pub struct Predecessor(ManuallyDrop<UnixStream>);

impl Predecessor {
    /// Takes the sockets from standard input, which is empty afterwards.
    ///
    /// # Errors
    ///
    /// Standard input is not a handover, or the old process has ended.
    pub fn receive() -> io::Result<(Self, PassedSockets)> {
        let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        let (sockets, files) = receive(&stream)?;
        let mut passed = PassedSockets::new(sockets, SocketSource::Predecessor)?;
        passed.files = files;
        Ok((Self(ManuallyDrop::new(stream)), passed))
    }

    /// Reports that this process accepts connections.
    ///
    /// # Errors
    ///
    /// The old process has ended.
    pub fn report_ready(self) -> io::Result<()> {
        ManuallyDrop::into_inner(self.0).write_all(&[READY])
    }
}

fn send(stream: &UnixStream, sockets: &[OwnedFd], files: SocketFiles) -> io::Result<()> {
    stream.set_write_timeout(Some(SEND_TIMEOUT))?;
    for batch in sockets.chunks(BATCH) {
        let batch: Vec<BorrowedFd<'_>> = batch.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&batch));
        sendmsg(stream, &[IoSlice::new(&[SOCKETS])], &mut control, SendFlags::NOSIGNAL)?;
    }
    (&*stream).write_all(&[END[files as usize]])
}

fn receive(stream: &UnixStream) -> io::Result<(Vec<OwnedFd>, SocketFiles)> {
    stream.set_read_timeout(Some(SEND_TIMEOUT))?;
    let mut sockets = Vec::new();
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let mut parts = [IoSliceMut::new(&mut byte)];
        // Reads one message: the kernel never joins bytes that have different sockets attached.
        let received = recvmsg(stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                sockets.extend(passed);
            }
        }
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let all = [SocketFiles::OfGateway, SocketFiles::OfServiceManager];
        if let Some(files) = all.into_iter().find(|files| END[*files as usize] == byte[0]) {
            return Ok((sockets, files));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn sockets_are_received_as_they_were_sent() {
        let (old, new) = UnixStream::pair().unwrap();
        let listeners: Vec<TcpListener> =
            (0..=2 * BATCH).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let sockets: Vec<OwnedFd> =
            listeners.iter().map(|own| own.try_clone().unwrap().into()).collect();
        send(&old, &sockets, SocketFiles::OfServiceManager).unwrap();
        let (received, files) = receive(&new).unwrap();
        assert_eq!(files, SocketFiles::OfServiceManager);
        let mut passed = PassedSockets::new(received, SocketSource::Predecessor).unwrap();
        for listener in &listeners {
            let address = listener.local_addr().unwrap();
            let taken = passed.take_tcp(address);
            assert_eq!(taken.len(), 1);
            assert_eq!(taken[0].local_addr().unwrap(), address);
        }
        assert!(passed.addresses().is_empty());
    }

    #[test]
    fn an_end_before_the_last_message_is_an_error() {
        let (old, new) = UnixStream::pair().unwrap();
        let mut old = old;
        old.write_all(b"s").unwrap();
        drop(old);
        assert_eq!(receive(&new).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
