//! The error of a CSI call.

use std::time::Duration;

use tonic::Code;

/// Why a CSI call failed. Messages are the driver's: drivers must not put secrets into them.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The driver responded with an error.
    #[error("{}", self.rpc_message())]
    Refused { method: &'static str, status: Box<tonic::Status> },
    /// The connection to the driver failed.
    #[error("{}", self.rpc_message())]
    Unreachable { method: &'static str, source: tonic::transport::Error },
    /// The driver did not respond in time. The operation may still be running.
    #[error("{}", self.rpc_message())]
    Timeout { method: &'static str, limit: Duration },
    /// The endpoint is not a unix socket.
    #[error("the CSI endpoint {0} is not a unix socket")]
    Endpoint(String),
}

impl CallError {
    pub(crate) fn of(method: &'static str, limit: Duration, status: tonic::Status) -> Self {
        // The client's own timer reports an expired deadline as a cancellation.
        if status.code() == Code::Cancelled && status.message() == "Timeout expired" {
            return Self::Timeout { method, limit };
        }
        // Only errors of this side have a source. Whatever code they carry, the connection broke: the driver itself refused
        // nothing, and may have done what was requested.
        if std::error::Error::source(&status).is_some() {
            let lost = tonic::Status::unavailable(format!("error reading from server: {}", root_cause(&status)));
            return Self::Refused { method, status: Box::new(lost) };
        }
        Self::Refused { method, status: Box::new(status) }
    }

    /// The gRPC code; of an unreachable driver `Unavailable`, as other clients have it.
    pub fn code(&self) -> Code {
        match self {
            Self::Refused { status, .. } => status.code(),
            Self::Unreachable { .. } => Code::Unavailable,
            Self::Timeout { .. } => Code::DeadlineExceeded,
            Self::Endpoint(_) => Code::InvalidArgument,
        }
    }

    /// The driver has certainly not done, and is not doing, what was requested. Otherwise the operation may have
    /// succeeded or may still be running: the caller has to repeat the call or undo it.
    pub fn is_final(&self) -> bool {
        match self {
            // Without a socket nothing was ever sent, but an earlier call may still be running.
            Self::Endpoint(_) => true,
            other => {
                !matches!(other.code(), Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted)
            }
        }
    }

    /// The volume, snapshot or path does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code() == Code::NotFound
    }

    /// The driver does not implement the call.
    pub fn is_unimplemented(&self) -> bool {
        self.code() == Code::Unimplemented
    }

    /// The driver is down.
    pub fn is_unavailable(&self) -> bool {
        self.code() == Code::Unavailable
    }

    /// The driver has no room for the volume where it was requested.
    pub fn is_exhausted(&self) -> bool {
        matches!(self.code(), Code::ResourceExhausted | Code::OutOfRange)
    }

    /// The driver's message, without the code.
    pub fn message(&self) -> String {
        match self {
            Self::Refused { status, .. } => status.message().to_string(),
            Self::Unreachable { source, .. } => {
                format!("connection error: desc = \"transport: Error while dialing: {}\"", root_cause(source))
            }
            Self::Timeout { .. } => "context deadline exceeded".to_string(),
            Self::Endpoint(_) => self.to_string(),
        }
    }

    /// The message in the form of a Go gRPC client, which users know from events.
    pub fn rpc_message(&self) -> String {
        match self {
            Self::Endpoint(endpoint) => format!("the CSI endpoint {endpoint} is not a unix socket"),
            other => format!("rpc error: code = {} desc = {}", go_name(other.code()), other.message()),
        }
    }
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// The names of codes in Go, which differ in spelling.
fn go_name(code: Code) -> String {
    match code {
        Code::Ok => "OK".into(),
        Code::Cancelled => "Canceled".into(),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_some_codes_leave_the_outcome_open() {
        for (code, expected) in [
            (Code::Aborted, false),
            (Code::Cancelled, false),
            (Code::DeadlineExceeded, false),
            (Code::Unavailable, false),
            (Code::FailedPrecondition, true),
            (Code::Internal, true),
            (Code::InvalidArgument, true),
            (Code::NotFound, true),
            (Code::ResourceExhausted, true),
        ] {
            let status = Box::new(tonic::Status::new(code, "no"));
            assert_eq!(CallError::Refused { method: "CreateVolume", status }.is_final(), expected, "{code:?}");
        }
        assert!(!CallError::Timeout { method: "CreateVolume", limit: Duration::from_secs(1) }.is_final());
    }

    #[test]
    fn messages_have_the_form_that_events_show() {
        let status = Box::new(tonic::Status::cancelled("stopped"));
        let error = CallError::Refused { method: "CreateVolume", status };
        assert_eq!(error.to_string(), "rpc error: code = Canceled desc = stopped");
        let error = CallError::Timeout { method: "CreateVolume", limit: Duration::from_secs(1) };
        assert_eq!(error.to_string(), "rpc error: code = DeadlineExceeded desc = context deadline exceeded");
    }
}
