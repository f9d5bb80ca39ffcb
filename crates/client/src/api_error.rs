//! Text of API errors.

/// The server's own message, which goes into events and conditions; the whole error where no server responded.
pub fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
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
