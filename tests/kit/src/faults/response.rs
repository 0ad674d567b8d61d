//! The responses of a target, good and faulty.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{
    behavior::Behavior,
    message::{Framing, Received, framed_body, response_head},
};

/// Delay of a slow head.
const SLOW_HEAD: Duration = Duration::from_millis(200);
/// Delay before each byte of a slow body.
const SLOW_BYTE: Duration = Duration::from_millis(5);
/// Pause between two parts of a flood, which bounds its processor time.
const FLOOD_PAUSE: Duration = Duration::from_millis(2);
/// Length of a part of a flood, in bytes.
const FLOOD_PART: usize = 16 * 1024;

/// The target's next step after a response.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum After {
    /// The next request.
    Keep,
    /// FIN.
    Close,
    /// RST.
    Reset,
    /// Nothing more, until the other end closes.
    Hang,
}

/// Responds to a request with this behavior.
pub(super) async fn respond(
    stream: &mut TcpStream,
    behavior: Behavior,
    request: Received,
    target: usize,
) -> After {
    let id = match request {
        Received::Request { id, .. } => id,
        Received::Check => 0,
    };
    let framing = Framing::of(id);
    let head = response_head(id, "200 OK", target, framing).into_bytes();
    let body = framed_body(id, framing);
    let (half_head, half_body) = (&head[..head.len() / 2], &body[..body.len() / 2]);
    match behavior {
        Behavior::Good => write(stream, &[&head, &body], After::Keep).await,
        Behavior::Silent => After::Hang,
        Behavior::ResetBeforeHead => After::Reset,
        Behavior::ResetWithinHead => {
            let after = write(stream, &[half_head], After::Reset).await;
            pause_before(after).await
        }
        Behavior::ResetAfterHead => {
            let after = write(stream, &[&head, half_body], After::Reset).await;
            pause_before(after).await
        }
        Behavior::HangsInBody => write(stream, &[&head, half_body], After::Hang).await,
        Behavior::SlowHead => {
            tokio::time::sleep(SLOW_HEAD).await;
            write(stream, &[&head, &body], After::Keep).await
        }
        Behavior::SlowBody => {
            let mut after = write(stream, &[&head], After::Keep).await;
            for byte in body.chunks(1) {
                if after == After::Keep {
                    tokio::time::sleep(SLOW_BYTE).await;
                    after = write(stream, &[byte], After::Keep).await;
                }
            }
            after
        }
        Behavior::Cuts => write(stream, &[&head, half_body], After::Close).await,
        Behavior::WrongLength => {
            // An id that no request has.
            let other = !id;
            let surplus = response_head(other, "200 OK", target, framing).into_bytes();
            let surplus_body = framed_body(other, framing);
            write(stream, &[&head, &body, &surplus, &surplus_body], After::Keep).await
        }
        Behavior::FloodsHead => {
            let start = &head[..head.len() - 2];
            flood(stream, start, &b"x-flood: flood\r\n".repeat(FLOOD_PART / 16)).await
        }
        Behavior::FloodsBody => {
            // Not `Content-Length`, with which a flood would be a wrong length.
            let head = response_head(id, "200 OK", target, Framing::Chunked);
            let mut part = format!("{FLOOD_PART:x}\r\n").into_bytes();
            part.extend(vec![b'x'; FLOOD_PART]);
            part.extend(b"\r\n");
            flood(stream, head.as_bytes(), &part).await
        }
        Behavior::Unavailable => {
            let head = response_head(id, "503 Service Unavailable", target, framing).into_bytes();
            write(stream, &[&head, &body], After::Keep).await
        }
        // Their connections are not served.
        Behavior::Refuses | Behavior::HalfOpen | Behavior::FullBacklog => After::Close,
    }
}

/// Writes the parts; a connection that has ended is closed.
async fn write(stream: &mut TcpStream, parts: &[&[u8]], after: After) -> After {
    match stream.write_all(&parts.concat()).await {
        Ok(()) => after,
        Err(_) => After::Close,
    }
}

/// Lets the gateway read the written bytes: a reset discards unread ones.
async fn pause_before(after: After) -> After {
    tokio::time::sleep(Duration::from_millis(2)).await;
    after
}

/// Writes `part` again and again until the gateway closes the connection.
async fn flood(stream: &mut TcpStream, start: &[u8], part: &[u8]) -> After {
    let mut after = write(stream, &[start], After::Keep).await;
    while after == After::Keep {
        after = write(stream, &[part], After::Keep).await;
        tokio::time::sleep(FLOOD_PAUSE).await;
    }
    after
}

/// Appends the stream's available bytes; false at its end.
pub(super) async fn read(stream: &mut TcpStream, received: &mut Vec<u8>) -> bool {
    stream.read_buf(received).await.is_ok_and(|count| count > 0)
}

/// Reads and discards until the stream's end.
pub(super) async fn read_to_end(stream: &mut TcpStream) {
    let mut discarded = [0; 4096];
    while stream.read(&mut discarded).await.is_ok_and(|count| count > 0) {}
}
