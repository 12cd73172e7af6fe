//! The control socket: HTTP with JSON over a Unix socket in the data directory, for `pinnace status`, `reload`, `drain`, `backup` and `store stats`, and for
//! `curl --unix-socket`. Whoever may open the file (mode 0600) may use it.
//!
//! Must not know how the parts work: it asks the server's [`Control`].

use std::{
    fs, io,
    num::NonZeroU32,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::{
    Json, Router,
    extract::{Query, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::UnixListener;

/// What the control socket can ask of the server.
#[derive(Clone)]
pub struct Control {
    /// The state of the broker.
    pub status: Arc<dyn Fn() -> Value + Send + Sync>,
    /// Reads the files of authorization and TLS again; the faults of those that are not right.
    pub reload: Arc<dyn Fn() -> Result<(), Vec<String>> + Send + Sync>,
    /// Begins an orderly stop.
    pub drain: Arc<dyn Fn() + Send + Sync>,
    /// Adds a backup to those in a directory, of which so many stay if it is told; what there is to say of it.
    pub backup: Arc<Backup>,
    /// What the store holds, with so many of the longest queues.
    pub store: Arc<dyn Fn(usize) -> Result<Value, String> + Send + Sync>,
}

/// What [`Control::backup`] is.
pub type Backup = dyn Fn(&Path, Option<NonZeroU32>) -> Result<Value, String> + Send + Sync;

/// The socket, ready to serve. Its file goes with it.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    file: SocketFile,
}

#[derive(Debug)]
struct SocketFile(PathBuf);

impl Socket {
    /// Opens `control.sock` in `data_dir`. One that an earlier process left behind is replaced: whoever holds the store holds the directory.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn open(data_dir: &Path) -> io::Result<Self> {
        let path = data_dir.join("control.sock");
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        Ok(Self { listener, file: SocketFile(path) })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.file.0
    }

    /// Serves until dropped.
    ///
    /// # Errors
    /// The socket broke.
    pub async fn serve(self, control: Control) -> io::Result<()> {
        let routes = Router::new()
            .route("/v1/status", get(status))
            .route("/v1/reload", post(reload))
            .route("/v1/drain", post(drain))
            .route("/v1/backup", post(backup))
            .route("/v1/store", get(store))
            .with_state(control);
        let Self { listener, file } = self;
        let served = axum::serve(listener, routes).await;
        drop(file);
        served
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Left behind, it is replaced at the next start.
        let _ = fs::remove_file(&self.0);
    }
}

async fn status(State(control): State<Control>) -> Json<Value> {
    Json((control.status)())
}

async fn reload(State(control): State<Control>) -> Response {
    // Reads files, and may hash: not on the runtime's threads.
    let reloaded = tokio::task::spawn_blocking(move || (control.reload)()).await;
    match reloaded {
        Ok(Ok(())) => Json(json!({ "reloaded": true })).into_response(),
        Ok(Err(errors)) => {
            let body = json!({ "reloaded": false, "errors": errors, "error": errors.join("; ") });
            (StatusCode::UNPROCESSABLE_ENTITY, Json(body)).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, Json(json!({ "error": error.to_string() }))).into_response(),
    }
}

async fn drain(State(control): State<Control>) -> Json<Value> {
    (control.drain)();
    Json(json!({ "draining": true }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BackupRequest {
    dir: PathBuf,
    keep: Option<NonZeroU32>,
}

async fn backup(State(control): State<Control>, Json(wanted): Json<BackupRequest>) -> Response {
    blocking(move || (control.backup)(&wanted.dir, wanted.keep)).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StoreRequest {
    #[serde(default)]
    largest: u16,
}

async fn store(State(control): State<Control>, Query(wanted): Query<StoreRequest>) -> Response {
    blocking(move || (control.store)(wanted.largest.into())).await
}

/// What waits for the disk: not on the runtime's threads.
async fn blocking(work: impl FnOnce() -> Result<Value, String> + Send + 'static) -> Response {
    let error = |status: StatusCode, error: String| (status, Json(json!({ "error": error }))).into_response();
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(answer)) => Json(answer).into_response(),
        Ok(Err(problem)) => error(StatusCode::UNPROCESSABLE_ENTITY, problem),
        Err(failed) => error(StatusCode::INTERNAL_SERVER_ERROR, failed.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_backups_cannot_be_removed() {
        let keep = |keep: &str| {
            let asked = format!(r#"{{"dir":"/b","keep":{keep}}}"#);
            serde_json::from_str::<BackupRequest>(&asked).ok().map(|asked| asked.keep.map(NonZeroU32::get))
        };
        assert_eq!((keep("1"), keep("null")), (Some(Some(1)), Some(None)));
        for wrong in ["0", "4294967296", "-1"] {
            assert_eq!(keep(wrong), None, "{wrong}");
        }
    }
}
