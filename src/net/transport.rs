//! One enum for every kind of byte stream, so that the connection has one loop.
//!
//! Must not know MQTT.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::server::TlsStream;

/// A byte stream from a client.
#[derive(Debug)]
pub(super) enum Transport {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    /// A pipe in memory, for tests.
    Memory(DuplexStream),
}

impl Transport {
    /// Reads once into `buffer`. `Ok(0)` is the end of the stream.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        let read = match self {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_read(cx, &mut buffer),
            Self::Memory(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
        };
        read.map_ok(|()| buffer.filled().len())
    }

    /// Writes once, as much of `slices` as is taken.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write_vectored(cx, slices),
            Self::Memory(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    /// Pushes out what a write left inside (TLS records).
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(_) | Self::Memory(_) => Poll::Ready(Ok(())),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
        }
    }

    /// Ends the stream in order.
    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
            Self::Memory(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
