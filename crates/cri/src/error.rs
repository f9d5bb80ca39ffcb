//! The error of a CRI call.

use tonic::Code;

/// Why a CRI call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The runtime responded with an error.
    #[error("{method}: {}", status.message())]
    Refused { method: &'static str, status: Box<tonic::Status> },
    /// The connection to the runtime failed.
    #[error("{method}: the runtime does not respond")]
    Unreachable { method: &'static str, source: tonic::transport::Error },
    /// The runtime's response lacks a required field.
    #[error("{method}: the runtime's response lacks {field}")]
    Incomplete { method: &'static str, field: &'static str },
    /// The endpoint is not a unix socket.
    #[error("the runtime endpoint {0} is not a unix socket")]
    Endpoint(String),
}

impl CallError {
    /// The sandbox, container or image does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if status.code() == Code::NotFound)
    }

    /// The runtime does not implement the call.
    pub fn is_unimplemented(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if status.code() == Code::Unimplemented)
    }

    /// The call timed out.
    pub fn is_timeout(&self) -> bool {
        let timed_out = |status: &tonic::Status| matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled);
        matches!(self, Self::Refused { status, .. } if timed_out(status))
    }

    /// The runtime is down, or is still loading its state after a start.
    pub fn is_unavailable(&self) -> bool {
        // containerd has no code of its own for this.
        const STARTING: &str = "server is not initialized yet";
        match self {
            Self::Refused { status, .. } => status.code() == Code::Unavailable || status.message() == STARTING,
            Self::Unreachable { .. } => true,
            _ => false,
        }
    }

    /// The runtime's message, without the name of the call.
    pub fn message(&self) -> String {
        match self {
            Self::Refused { status, .. } => status.message().to_string(),
            other => other.to_string(),
        }
    }

    /// The message of a failed pull: with the gRPC code unless that is `Unknown`.
    pub fn pull_message(&self) -> String {
        match self {
            Self::Refused { status, .. } if status.code() == Code::Unknown => self.message(),
            other => other.rpc_message(),
        }
    }

    /// The message in the form of a Go gRPC client, which users know from events.
    pub fn rpc_message(&self) -> String {
        match self {
            Self::Refused { status, .. } => {
                format!("rpc error: code = {:?} desc = {}", status.code(), status.message())
            }
            other => other.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_that_is_down_or_starting_is_unavailable() {
        for (code, message, expected) in [
            (Code::Unavailable, "Connection refused (os error 111)", true),
            (Code::Unknown, "server is not initialized yet", true),
            (Code::Unknown, "failed to reserve sandbox name", false),
            (Code::NotFound, "not found", false),
        ] {
            let status = Box::new(tonic::Status::new(code, message));
            let error = CallError::Refused { method: "Status", status };
            assert_eq!(error.is_unavailable(), expected, "{message}");
        }
    }
}
