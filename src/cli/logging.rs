//! Starts the log: `tracing` to standard error, for people or as JSON, one event per line.
//!
//! What clients send reaches the log through `Display` and `Debug` of many types; so control characters are escaped here,
//! at the end, and no client id can forge a line or drive a terminal.

use std::io::{self, IsTerminal, Write};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use super::Failure;
use crate::config::{LogConfig, LogFormat};

/// Sends events to standard error from now on, in the form and from the level that `config` says.
///
/// # Errors
/// A level that cannot be understood, or a log that was started already.
pub fn start(config: &LogConfig) -> Result<(), Failure> {
    let filter = EnvFilter::builder().parse(&config.level).map_err(Failure::failed)?;
    let human = match config.format {
        LogFormat::Auto => io::stderr().is_terminal(),
        LogFormat::Human => true,
        LogFormat::Json => false,
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(StandardError).with_ansi(false);
    let started = if human { log.with_target(false).try_init() } else { log.json().try_init() };
    started.map_err(|error| Failure::Failed(error.to_string()))
}

struct StandardError;

impl<'a> MakeWriter<'a> for StandardError {
    type Writer = Escaping<io::StderrLock<'a>>;

    fn make_writer(&'a self) -> Self::Writer {
        Escaping(io::stderr().lock())
    }
}

/// Writes each buffer as one line: every control character but a closing line feed is written as `\u001b`, which means the
/// same inside a JSON string.
struct Escaping<W>(W);

impl<W: Write> Write for Escaping<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let (body, end) = text.strip_suffix('\n').map_or((&*text, ""), |body| (body, "\n"));
        if body.contains(is_unsafe) {
            let mut escaped = String::with_capacity(body.len() + 16);
            for char in body.chars() {
                if is_unsafe(char) {
                    escaped.push_str(&format!("\\u{:04x}", u32::from(char)));
                } else {
                    escaped.push(char);
                }
            }
            self.0.write_all((escaped + end).as_bytes())?;
        } else {
            self.0.write_all(line)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Control characters, and those that break lines or turn the direction of the text around them.
fn is_unsafe(char: char) -> bool {
    char.is_control() || matches!(char, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(json: bool, client_id: &str) -> String {
        let memory = Memory::default();
        let writer = memory.clone();
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || Escaping(writer.clone()));
        let event = || tracing::info!(client = %client_id, "connected {client_id}");
        if json {
            tracing::subscriber::with_default(log.json().finish(), event);
        } else {
            tracing::subscriber::with_default(log.finish(), event);
        }
        let bytes = memory.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    /// Case D90.
    #[test]
    fn a_client_id_cannot_forge_a_line_or_drive_a_terminal() {
        let ids =
            ["x\n2026 root logged in", "\u{1b}[2J", "a\rb", "\u{9b}2J", "\u{202e}dekcart", "\u{2028}next", "tab\t"];
        for id in ids {
            for json in [false, true] {
                let line = logged(json, id);
                let body = line.strip_suffix('\n').unwrap();
                assert!(!body.contains(is_unsafe), "{line:?}");
                assert!(body.contains("connected"), "{line:?}");
            }
            let event: serde_json::Value = serde_json::from_str(&logged(true, id)).unwrap();
            assert_eq!(event["fields"]["client"], id);
        }
    }

    #[test]
    fn ordinary_text_is_left_as_it_is() {
        assert!(logged(false, "Gerät/7 \\ ☂").contains("client=Gerät/7 \\ ☂"));
    }
}
