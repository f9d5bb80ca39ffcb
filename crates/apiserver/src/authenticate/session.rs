//! What the session of a browser that shows the page stands for.

use std::sync::Arc;

use http::HeaderMap;

use crate::request::User;

/// The credentials that a session stands for.
#[derive(Clone, Debug)]
pub enum Credential {
    /// A bearer token, and the headers of the user that its bearer impersonates. Both are checked again for each request.
    Token(Arc<str>, Arc<HeaderMap>),
    /// A user who showed something else, such as a client certificate.
    User(Arc<User>),
}

/// Browser sessions and their credentials.
pub type Sessions = knarr_ui::Sessions<Credential>;
