//! The commands to a running broker: `status`, `reload`, `drain`; HTTP with JSON over the socket in its data directory. Others ask it, too.
//!
//! Must not open the store: the broker that owns it answers.

use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;

use super::store::DataDir;
use super::{Failure, print};

/// Where the broker is, and how to tell its answer.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    data: DataDir,
    /// Its control socket, where it is elsewhere.
    #[arg(long, value_name = "PATH", conflicts_with = "data_dir")]
    socket: Option<PathBuf>,
    /// Print the answer as JSON.
    #[arg(long)]
    json: bool,
}

/// What is asked of the broker.
#[derive(Debug, Clone, Copy)]
pub enum Verb {
    /// `GET /v1/status`
    Status,
    /// `POST /v1/reload`
    Reload,
    /// `POST /v1/drain`
    Drain,
}

impl Verb {
    fn request(self) -> (Method, &'static str) {
        match self {
            Self::Status => (Method::GET, "/v1/status"),
            Self::Reload => (Method::POST, "/v1/reload"),
            Self::Drain => (Method::POST, "/v1/drain"),
        }
    }
}

/// Asks the broker and prints its answer.
///
/// # Errors
/// No broker there, an answer that says what failed, or none in time.
pub fn run(verb: Verb, args: &Args) -> Result<(), Failure> {
    let socket = socket(args.socket.as_deref(), &args.data)?;
    let (method, path) = verb.request();
    let answer = wait(ask(&socket, method, path, None), Some(DEADLINE))?;
    if args.json { print(format_args!("{answer:#}\n")) } else { print(human(&answer)) }
}

/// Asks for what may take its time.
pub(super) fn get(socket: &Path, path: &str) -> Result<Value, Failure> {
    wait(ask(socket, Method::GET, path, None), None)
}

/// Has the broker do what may take its time.
pub(super) fn post(socket: &Path, path: &str, body: &Value) -> Result<Value, Failure> {
    wait(ask(socket, Method::POST, path, Some(body)), None)
}

/// The control socket: the one that is named, else that of the data directory.
pub(super) fn socket(named: Option<&Path>, data: &DataDir) -> Result<PathBuf, Failure> {
    match named {
        Some(socket) => Ok(socket.to_owned()),
        None => Ok(data.path()?.join("control.sock")),
    }
}

fn wait(answer: impl Future<Output = Result<Value, Failure>>, deadline: Option<Duration>) -> Result<Value, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    runtime.block_on(async {
        match deadline {
            None => answer.await,
            Some(deadline) => tokio::time::timeout(deadline, answer)
                .await
                .unwrap_or_else(|_| Err(Failure::Failed(format!("no answer within {} s", deadline.as_secs())))),
        }
    })
}

async fn ask(socket: &Path, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
    let stream = UnixStream::connect(socket).await.map_err(|error| unreachable(socket, &error))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(Failure::failed)?;
    tokio::spawn(connection);
    let mut request = Request::builder().method(method).uri(path).header(hyper::header::HOST, "localhost");
    if body.is_some() {
        request = request.header(hyper::header::CONTENT_TYPE, "application/json");
    }
    let body = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
    let request = request.body(Full::new(body)).map_err(Failure::failed)?;
    let response = sender.send_request(request).await.map_err(Failure::failed)?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_MAX_BYTES).collect().await;
    let body = body.map_err(|error| Failure::Failed(format!("the answer broke off: {error}")))?.to_bytes();
    judge(status, &body)
}

fn unreachable(socket: &Path, error: &io::Error) -> Failure {
    let socket = socket.display();
    Failure::Failed(match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            format!("no broker runs at {socket}: {error}; name its data directory by --data-dir")
        }
        io::ErrorKind::PermissionDenied => {
            format!("{socket} may only be used by the user that the broker runs as: {error}")
        }
        _ => format!("cannot connect to {socket}: {error}"),
    })
}

/// The JSON of a good answer, else the failure that a bad one tells.
fn judge(status: StatusCode, body: &[u8]) -> Result<Value, Failure> {
    let json = if body.is_empty() { Ok(Value::Null) } else { serde_json::from_slice::<Value>(body) };
    match json {
        Ok(answer) if status.is_success() => Ok(answer),
        Ok(Value::Object(answer)) if answer.get("error").is_some_and(Value::is_string) => {
            Err(Failure::Failed(answer.get("error").and_then(Value::as_str).unwrap_or_default().to_owned()))
        }
        Ok(answer) => Err(Failure::Failed(format!("the broker answered {status}: {answer}"))),
        Err(error) if status.is_success() => Err(Failure::Failed(format!("the answer is not JSON: {error}"))),
        Err(_) => {
            Err(Failure::Failed(format!("the broker answered {status}: {}", String::from_utf8_lossy(body).trim())))
        }
    }
}

/// One line per value, inner ones under their path; control characters stay escaped.
pub(super) fn human(answer: &Value) -> String {
    let mut rows = Vec::new();
    flatten(answer, String::new(), &mut rows);
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in rows {
        let _ = if name.is_empty() { writeln!(text, "{value}") } else { writeln!(text, "{name:width$}  {value}") };
    }
    text
}

fn flatten(value: &Value, name: String, rows: &mut Vec<(String, String)>) {
    let inner = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
    match value {
        Value::Object(values) => values.iter().for_each(|(key, value)| flatten(value, inner(key), rows)),
        Value::Array(values) => {
            values.iter().enumerate().for_each(|(index, value)| flatten(value, format!("{name}[{index}]"), rows));
        }
        Value::Null if name.is_empty() => rows.push((name, "done".into())),
        Value::Null => rows.push((name, "-".into())),
        Value::String(text) if !text.contains(char::is_control) => rows.push((name, text.clone())),
        other => rows.push((name, other.to_string())),
    }
}

const DEADLINE: Duration = Duration::from_secs(30);
const ANSWER_MAX_BYTES: usize = 16 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write as _};
    use std::os::unix::net::UnixListener;

    use serde_json::json;

    use super::*;

    fn text(outcome: Result<Value, Failure>) -> String {
        match outcome {
            Ok(answer) => format!("ok {answer}"),
            Err(Failure::Failed(message) | Failure::Configuration(message) | Failure::Unusable(message)) => {
                format!("error {message}")
            }
        }
    }

    #[test]
    fn an_answer_is_judged_by_its_status_and_body() {
        let cases: &[(u16, &str, &str)] = &[
            (200, r#"{"clients":1}"#, r#"ok {"clients":1}"#),
            (204, "", "ok null"),
            (200, "hello", "error the answer is not JSON"),
            (409, r#"{"error":"acl:3:1: what"}"#, "error acl:3:1: what"),
            (500, r#"{"why":1}"#, r#"error the broker answered 500 Internal Server Error: {"why":1}"#),
            (404, "not here", "error the broker answered 404 Not Found: not here"),
        ];
        for (status, body, expected) in cases {
            let outcome = text(judge(StatusCode::from_u16(*status).unwrap(), body.as_bytes()));
            assert!(outcome.starts_with(expected), "{status} {body}: {outcome}");
        }
    }

    #[test]
    fn an_answer_is_told_line_by_line() {
        let answer = json!({"version": "1", "drops": {"expired": 2}, "list": ["a", {"b": null}], "id": "x\n"});
        let lines =
            ["drops.expired  2", "id             \"x\\n\"", "list[0]        a", "list[1].b      -", "version        1"];
        assert_eq!(human(&answer).lines().collect::<Vec<_>>(), lines);
        assert_eq!(human(&Value::Null), "done\n");
    }

    #[test]
    fn each_command_asks_for_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("control.sock");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        let cases = [
            (Verb::Status, "GET /v1/status HTTP/1.1"),
            (Verb::Reload, "POST /v1/reload HTTP/1.1"),
            (Verb::Drain, "POST /v1/drain HTTP/1.1"),
        ];
        for (verb, expected) in cases {
            let outcome = std::thread::scope(|scope| {
                let broker = scope.spawn(|| {
                    let (mut stream, _) = listener.accept().unwrap();
                    let mut request = Vec::new();
                    while !request.ends_with(b"\r\n\r\n") {
                        let mut byte = [0];
                        stream.read_exact(&mut byte).unwrap();
                        request.extend(byte);
                    }
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n{\"a\": 1}").unwrap();
                    String::from_utf8(request).unwrap()
                });
                let (method, path) = verb.request();
                let outcome = runtime.block_on(ask(&socket, method, path, None));
                assert!(broker.join().unwrap().starts_with(expected));
                outcome
            });
            assert_eq!(text(outcome), r#"ok {"a":1}"#);
        }
        drop(listener);
        let refused = text(runtime.block_on(ask(&socket, Method::GET, "/", None)));
        assert!(refused.starts_with("error no broker runs at "), "{refused}");
        let missing = text(runtime.block_on(ask(&dir.path().join("nothing"), Method::GET, "/", None)));
        assert!(missing.contains("--data-dir"), "{missing}");
    }
}
