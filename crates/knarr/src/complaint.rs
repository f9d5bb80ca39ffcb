//! What failed, then why, in one line: without what libraries print for their own authors.

use knarr_client::kube;

/// An error for whoever typed the command.
pub fn complaint(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let words = words(cause);
        // Many errors print their cause themselves.
        if words.is_empty() && as_api(cause).is_some() {
            break;
        }
        if words.is_empty() || text.contains(&words) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&words);
        // What comes after is the same once more, for programs.
        if matches!(as_api(cause), Some(kube::Error::Api(_))) {
            break;
        }
    }
    let is_full = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::StorageFull)
    };
    if error.chain().any(is_full) {
        text.push_str("; make room on that disk");
    }
    text
}

fn as_api<'e>(cause: &'e (dyn std::error::Error + 'static)) -> Option<&'e kube::Error> {
    cause.downcast_ref::<kube::Error>().or_else(|| Some(cause.downcast_ref::<Box<kube::Error>>()?.as_ref()))
}

fn words(cause: &(dyn std::error::Error + 'static)) -> String {
    match as_api(cause) {
        Some(kube::Error::Api(status)) if status.code == 401 => {
            "the API server does not know who asks: the token or certificate is wrong or has expired".to_owned()
        }
        Some(kube::Error::Api(status)) => status.message.clone(),
        // Whoever asked for a kind says which.
        Some(kube::Error::Discovery(_)) => String::new(),
        Some(kube::Error::Service(_) | kube::Error::HyperError(_)) => {
            "the API server cannot be reached: does it run (`knarr server`), and is the address right?".to_owned()
        }
        _ => cause.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn what_the_server_said_is_told_as_it_said_it() {
        let status = kube::core::Status { message: "pods \"x\" not found".to_owned(), code: 404, ..Default::default() };
        let error = Err::<(), _>(kube::Error::Api(Box::new(status))).context("cannot read pods/a/x").unwrap_err();
        assert_eq!(complaint(&error), "cannot read pods/a/x: pods \"x\" not found");
    }

    #[test]
    fn a_full_disk_wants_room() {
        let inner = std::io::Error::from(std::io::ErrorKind::StorageFull);
        let error = anyhow::Error::new(inner).context("cannot write a");
        assert_eq!(complaint(&error), "cannot write a: no storage space; make room on that disk");
    }

    #[test]
    fn nothing_is_said_twice() {
        let inner = std::io::Error::other("disk full");
        let error = anyhow::Error::new(inner).context("cannot write a: disk full").context("no snapshot");
        assert_eq!(complaint(&error), "no snapshot: cannot write a: disk full");
    }
}
