//! Whether the API server can be reached. All that a process asks of it fails together when it cannot be: that is said
//! once, and once more when it answers again.

use std::error::Error;

use parking_lot::Mutex;

/// The log target of both lines; they are told where only what matters to people is.
const TARGET: &str = "knarr::server";

/// What one client has seen of its server.
#[derive(Debug, Default)]
pub struct Reach {
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    is_away: bool,
    turns: u64,
}

/// When a request began, counted in the server's comings and goings: what one from before the last of them has to say
/// is old. The last answers of a server that ends may come after the first failure.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    turns: u64,
}

/// What a request says about the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    None,
    Away,
    Back,
}

impl Reach {
    /// To be called as a request begins.
    pub fn ask(&self) -> Asked {
        Asked { turns: self.seen.lock().turns }
    }

    /// Learns from a request. `failed` is set where no answer came, whatever it would have been.
    pub fn learn(&self, asked: Asked, failed: Option<&dyn Error>) {
        match (self.news(asked, failed.is_some()), failed) {
            (News::Away, Some(error)) => {
                tracing::warn!(target: TARGET, error = crate::informer::chain(error), "the API server cannot be reached; trying again until it answers");
            }
            (News::Back, _) => tracing::info!(target: TARGET, "the API server answers again"),
            _ => {}
        }
    }

    fn news(&self, asked: Asked, is_away: bool) -> News {
        let mut seen = self.seen.lock();
        if seen.turns != asked.turns || seen.is_away == is_away {
            return News::None;
        }
        *seen = Seen { is_away, turns: seen.turns + 1 };
        if is_away { News::Away } else { News::Back }
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
        let told = [false, true, true, true, false, false, true].map(|away| reach.news(reach.ask(), away));
        assert_eq!(told, [News::None, News::Away, News::None, News::None, News::Back, News::None, News::Away]);
    }

    #[test]
    fn what_was_asked_before_it_went_or_came_tells_nothing() {
        let reach = Reach::default();
        let early = reach.ask();
        assert_eq!(reach.news(early, true), News::Away);
        assert_eq!(reach.news(early, false), News::None, "the last answers of before");
        let trying = reach.ask();
        assert_eq!(reach.news(trying, false), News::Back);
        assert_eq!(reach.news(trying, true), News::None, "the last failures of before");
        assert_eq!(reach.news(reach.ask(), true), News::Away);
    }
}
