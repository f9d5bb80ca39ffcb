//! Whether the API server can be reached. All that a process asks of it fails together when it cannot be: that is said
//! once, and once more when it answers again.

use std::error::Error;

use parking_lot::Mutex;

/// The log target of both lines; they are told where only what matters to people is.
const TARGET: &str = "knarr::server";

/// What one client has seen of its server.
#[derive(Debug, Default)]
pub struct Reach {
    away: Mutex<bool>,
}

/// What a request says about the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    None,
    Away,
    Back,
}

impl Reach {
    /// Learns from a request. `failed` is set where no answer came, whatever it would have been.
    pub fn learn(&self, failed: Option<&dyn Error>) {
        match (self.news(failed.is_some()), failed) {
            (News::Away, Some(error)) => {
                tracing::warn!(target: TARGET, error = crate::informer::chain(error), "the API server cannot be reached; trying again until it answers");
            }
            (News::Back, _) => tracing::info!(target: TARGET, "the API server answers again"),
            _ => {}
        }
    }

    fn news(&self, is_away: bool) -> News {
        match (is_away, std::mem::replace(&mut *self.away.lock(), is_away)) {
            (true, false) => News::Away,
            (false, true) => News::Back,
            _ => News::None,
        }
    }
}

/// Whether a request failed because no answer came, which is told already.
pub fn is_unreachable(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Service(_) | kube::Error::HyperError(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn going_and_coming_back_are_told_once_each() {
        let reach = Reach::default();
        let told: Vec<News> = [false, true, true, true, false, false, true].map(|away| reach.news(away)).into();
        assert_eq!(told, [News::None, News::Away, News::None, News::None, News::Back, News::None, News::Away]);
    }
}
