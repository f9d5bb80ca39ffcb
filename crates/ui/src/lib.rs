//! The web page of a cluster: its files, and the sessions of the browsers that show it.
//!
//! The page is plain HTML, CSS and JavaScript without a build step. It reads and changes the cluster through the API as
//! the user who signed in. The files hold no data of the cluster, so they are served to everybody.

mod assets;
mod sessions;

pub use assets::{Asset, CONTENT_SECURITY_POLICY, asset};
pub use sessions::{CODE_LIFETIME, MAX_PER_OWNER, SESSION_LIFETIME, Sessions, TOKEN_PREFIX};

/// Where a link to the page is created, which becomes a session of the user who asks for it.
pub const LINK_PATH: &str = "/ui/link";
