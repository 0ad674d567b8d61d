//! A pseudo-terminal, and what a child process writes to it.

use std::{
    ffi::OsStr,
    fs::File,
    io::Read,
    os::unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    process::Stdio,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
};

use rustix::{
    fs::OFlags,
    pty::{OpenptFlags, openpt, ptsname, unlockpt},
};

/// A terminal. Its own side is read by a thread until no process has the other one open.
pub struct Terminal {
    file: Option<File>,
    output: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Default for Terminal {
    fn default() -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let own = openpt(flags).expect("a pseudo-terminal");
        unlockpt(&own).expect("our own terminal");
        let name = ptsname(&own, Vec::new()).expect("its name");
        let path = OsStr::from_bytes(name.as_bytes());
        let no_control = OFlags::NOCTTY.bits().cast_signed();
        let file = File::options().read(true).write(true).custom_flags(no_control).open(path);
        let output = Arc::<Mutex<Vec<u8>>>::default();
        let collector = Arc::clone(&output);
        let reader = thread::spawn(move || {
            let (mut own, mut chunk) = (File::from(own), [0; 4096]);
            // It fails once no process has the terminal open.
            while let Ok(count @ 1..) = own.read(&mut chunk) {
                collector.lock().expect("no panic").extend_from_slice(&chunk[..count]);
            }
        });
        Self { file: Some(file.expect("the terminal")), output, reader: Some(reader) }
    }
}

impl Terminal {
    /// The terminal as an output of a child process.
    pub fn stdio(&self) -> Stdio {
        let file = self.file.as_ref().expect("it is open until it is closed");
        file.try_clone().expect("another descriptor").into()
    }

    /// What was written so far, with `\n` at the end of lines.
    pub fn text(&self) -> String {
        let output = self.output.lock().expect("no panic");
        String::from_utf8_lossy(&output).replace("\r\n", "\n")
    }

    /// Waits until the processes that write to it have ended, and returns what they wrote.
    pub fn close(mut self) -> String {
        self.file = None;
        if let Some(reader) = self.reader.take() {
            reader.join().expect("no panic");
        }
        self.text()
    }
}
