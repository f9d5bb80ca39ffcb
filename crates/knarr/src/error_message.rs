//! Renders an error for the command line: what failed, then why, in one line, without internals of libraries.

use knarr_client::kube;

/// The message for an error.
pub fn error_message(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let message = message(cause);
        // Many errors include their source in their message.
        if message.is_empty() && as_api(cause).is_some() {
            break;
        }
        if message.is_empty() || text.contains(&message) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&message);
        // The rest repeats the same for programs.
        if matches!(as_api(cause), Some(kube::Error::Api(_))) {
            break;
        }
    }
    let is_full = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::StorageFull)
    };
    if error.chain().any(is_full) {
        text.push_str("; free space on that disk");
    }
    text
}

fn as_api<'e>(cause: &'e (dyn std::error::Error + 'static)) -> Option<&'e kube::Error> {
    cause.downcast_ref::<kube::Error>().or_else(|| Some(cause.downcast_ref::<Box<kube::Error>>()?.as_ref()))
}

fn message(cause: &(dyn std::error::Error + 'static)) -> String {
    match as_api(cause) {
        Some(kube::Error::Api(status)) if status.code == 401 => {
            "the API server rejected the credentials: the token or certificate is invalid or has expired".to_owned()
        }
        Some(kube::Error::Api(status)) => status.message.clone(),
        // The caller's context names the kind.
        Some(kube::Error::Discovery(_)) => String::new(),
        Some(kube::Error::Service(_) | kube::Error::HyperError(_)) => {
            "cannot reach the API server: is it running (`knarr server`), and is the address right?".to_owned()
        }
        _ => cause.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn the_server_s_message_is_printed_unchanged() {
        let status = kube::core::Status { message: "pods \"x\" not found".to_owned(), code: 404, ..Default::default() };
        let error = Err::<(), _>(kube::Error::Api(Box::new(status))).context("cannot read pods/a/x").unwrap_err();
        assert_eq!(error_message(&error), "cannot read pods/a/x: pods \"x\" not found");
    }

    #[test]
    fn a_full_disk_has_a_hint() {
        let inner = std::io::Error::from(std::io::ErrorKind::StorageFull);
        let error = anyhow::Error::new(inner).context("cannot write a");
        assert_eq!(error_message(&error), "cannot write a: no storage space; free space on that disk");
    }

    #[test]
    fn nothing_is_repeated() {
        let inner = std::io::Error::other("disk full");
        let error = anyhow::Error::new(inner).context("cannot write a: disk full").context("no snapshot");
        assert_eq!(error_message(&error), "no snapshot: cannot write a: disk full");
    }
}
