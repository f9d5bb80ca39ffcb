//! Retries while the server cannot be reached.

use std::time::Duration;

const RETRY: Duration = Duration::from_secs(2);

/// Retries while the server cannot be reached, which may just be starting; any other error is returned.
pub async fn until_reached<T, F>(mut attempt: impl FnMut() -> F) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<T>>,
{
    let mut is_logged = false;
    loop {
        match attempt().await {
            Ok(value) => return Ok(value),
            Err(error) if is_unreachable(&error) => {
                if !std::mem::replace(&mut is_logged, true) {
                    let error = format!("{error:#}");
                    tracing::warn!(error, "cannot reach the server; retrying");
                }
                tokio::time::sleep(RETRY).await;
            }
            Err(error) => return Err(error),
        }
    }
}

fn is_unreachable(error: &anyhow::Error) -> bool {
    use knarr_client::kube::Error;
    error.chain().any(|cause| {
        let from_api = cause.downcast_ref::<Error>().or_else(|| Some(cause.downcast_ref::<Box<Error>>()?.as_ref()));
        let from_system = cause.downcast_ref::<std::io::Error>();
        // A malformed response is reported as invalid data; a retry does not help.
        from_system.is_some_and(|error| error.kind() != std::io::ErrorKind::InvalidData)
            || match from_api {
                Some(Error::Api(status)) => matches!(status.code, 429 | 500..),
                Some(Error::HyperError(_) | Error::Service(_)) => true,
                _ => false,
            }
    })
}
