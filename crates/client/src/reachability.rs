//! Tracks whether the API server is reachable. When it is not, all requests of a process fail together: this is logged
//! once, and once more when the server responds again.

use std::error::Error;

use parking_lot::Mutex;

/// The log target of both lines, which is enabled even where only messages for users are.
const TARGET: &str = "knarr::server";

/// Whether one client's server is reachable, from the outcome of its requests.
#[derive(Debug, Default)]
pub struct ServerReachability {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    is_unreachable: bool,
    epoch: u64,
}

/// The epoch in which a request was started; each change of reachability starts a new one. The outcome of a request from
/// a previous epoch is outdated: the last responses of a stopping server may arrive after the first failure.
#[derive(Clone, Copy, Debug)]
pub struct RequestEpoch {
    epoch: u64,
}

/// How a request changed the reachability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transition {
    None,
    Lost,
    Restored,
}

impl ServerReachability {
    /// Call this when a request is started.
    pub fn start_request(&self) -> RequestEpoch {
        RequestEpoch { epoch: self.state.lock().epoch }
    }

    /// Call this when a request is finished. `failed` is set only if no response arrived, not for an error response.
    pub fn finish_request(&self, started: RequestEpoch, failed: Option<&dyn Error>) {
        match (self.transition(started, failed.is_some()), failed) {
            (Transition::Lost, Some(error)) => {
                tracing::warn!(target: TARGET, error = crate::error_chain::error_chain(error), "the API server cannot be reached; retrying until it responds");
            }
            (Transition::Restored, _) => tracing::info!(target: TARGET, "the API server responds again"),
            _ => {}
        }
    }

    fn transition(&self, started: RequestEpoch, is_unreachable: bool) -> Transition {
        let mut state = self.state.lock();
        if state.epoch != started.epoch || state.is_unreachable == is_unreachable {
            return Transition::None;
        }
        *state = State { is_unreachable, epoch: state.epoch + 1 };
        if is_unreachable { Transition::Lost } else { Transition::Restored }
    }
}

/// Whether a request failed because no response arrived, which has been logged already.
pub fn is_unreachable(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Service(_) | kube::Error::HyperError(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_and_recovery_are_logged_once_each() {
        let server = ServerReachability::default();
        let transitions = [false, true, true, true, false, false, true]
            .map(|is_unreachable| server.transition(server.start_request(), is_unreachable));
        use Transition::{Lost, None, Restored};
        assert_eq!(transitions, [None, Lost, None, None, Restored, None, Lost]);
    }

    #[test]
    fn requests_of_a_previous_epoch_are_ignored() {
        let server = ServerReachability::default();
        let early = server.start_request();
        assert_eq!(server.transition(early, true), Transition::Lost);
        assert_eq!(server.transition(early, false), Transition::None, "the last responses of the previous epoch");
        let trying = server.start_request();
        assert_eq!(server.transition(trying, false), Transition::Restored);
        assert_eq!(server.transition(trying, true), Transition::None, "the last failures of the previous epoch");
        assert_eq!(server.transition(server.start_request(), true), Transition::Lost);
    }
}
