//! What an error of the API means, and its text.

/// The server's own message, which goes into events and conditions; the whole error where no server responded.
pub fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// Whether the server responded with this HTTP status.
pub fn has_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// Whether the object does not exist (any more).
pub fn is_not_found(error: &kube::Error) -> bool {
    has_code(error, 404)
}

/// Whether an object of this name exists.
pub fn is_already_there(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists")
}

/// Whether the object was changed in the meantime.
pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason != "AlreadyExists")
}

/// Treats "not found" as success.
pub fn ignore_not_found<T>(result: kube::Result<T>) -> kube::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    #[test]
    fn the_message_is_the_server_s_own() {
        let refused = kube::Error::Api(Status::failure("pods \"a\" not found", "NotFound").with_code(404).boxed());
        assert_eq!(message(&refused), "pods \"a\" not found");
    }
}
