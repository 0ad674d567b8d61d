//! A proxy before Redis that can answer every command by itself, in Redis' words.
#![allow(dead_code, reason = "a kit: no suite uses all of it")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

/// Stands before a server; lives as long as the test's process.
pub(crate) struct Refuser {
    port: u16,
    answer: Arc<Mutex<Option<String>>>,
}

impl Refuser {
    /// Before the server at this URL, which is on loopback.
    pub(crate) fn before(url: &str) -> Self {
        let port = url.rsplit_once(':').expect("a port").1.parse().expect("a number");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let own = listener.local_addr().expect("a bound address").port();
        let answer = Arc::<Mutex<Option<String>>>::default();
        let refuser = Self { port: own, answer: answer.clone() };
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let server = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port)));
                let answer = answer.clone();
                if let Ok(server) = server {
                    thread::spawn(move || serve(client, server, &answer));
                }
            }
        });
        refuser
    }

    /// Where it listens.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// From now on answers every command with this reply, as it stands on the wire.
    pub(crate) fn answer(&self, reply: &str) {
        *self.answer.lock().expect("no thread panics with it") = Some(reply.to_owned());
    }

    /// Ends [`Self::answer`].
    pub(crate) fn pass(&self) {
        *self.answer.lock().expect("no thread panics with it") = None;
    }
}

/// Hands commands on one by one, or answers them; from its first answer on it hands on no more.
fn serve(client: TcpStream, mut server: TcpStream, answer: &Mutex<Option<String>>) {
    let mut back = client.try_clone().expect("a socket");
    back.set_nodelay(true).expect("no delay");
    server.set_nodelay(true).expect("no delay");
    let mut replies = server.try_clone().expect("a socket");
    let mut to_client = client.try_clone().expect("a socket");
    let mut replying = Some(thread::spawn(move || std::io::copy(&mut replies, &mut to_client)));
    let mut commands = BufReader::new(client);
    while let Some(command) = read_command(&mut commands) {
        let own = answer.lock().expect("no thread panics with it").clone();
        let sent = match own {
            Some(reply) => {
                // Answers keep their order: what the server was asked before, it answers first.
                if let Some(replying) = replying.take() {
                    let _ = server.shutdown(Shutdown::Write);
                    let _ = replying.join();
                }
                back.write_all(reply.as_bytes())
            }
            None if replying.is_some() => server.write_all(&command),
            None => break,
        };
        if sent.is_err() {
            break;
        }
    }
    // Closed already is as good.
    for end in [back, server] {
        let _ = end.shutdown(Shutdown::Both);
    }
}

/// One command as it stands on the wire: an array of texts with their lengths.
fn read_command(from: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
    let mut command = Vec::new();
    let count = read_length(from, &mut command)?;
    for _ in 0..count {
        let length = read_length(from, &mut command)?;
        let start = command.len();
        command.resize(start + length + 2, 0);
        from.read_exact(&mut command[start..]).ok()?;
    }
    Some(command)
}

/// A line such as `*3` or `$17`, which is added to `all`; its number.
fn read_length(from: &mut BufReader<TcpStream>, all: &mut Vec<u8>) -> Option<usize> {
    let mut line = Vec::new();
    from.read_until(b'\n', &mut line).ok()?;
    all.extend(&line);
    std::str::from_utf8(line.get(1..)?).ok()?.trim().parse().ok()
}
