//! The credentials behind a browser session of the page.

use std::sync::Arc;

use http::HeaderMap;

use super::connection::ClientConnection;
use crate::request::User;

/// The credentials that a session stands for. Tokens and certificates are checked again for each request, and so are the
/// headers of the user that their owner impersonates.
#[derive(Clone)]
pub enum Credential {
    /// A bearer token.
    Token(Arc<str>, Arc<HeaderMap>),
    /// The client certificate of a connection, which may be closed.
    Certificate(Arc<ClientConnection>, Arc<HeaderMap>),
    /// A user whom a front proxy or this process names.
    User(Arc<User>),
}

/// Browser sessions and their credentials.
pub type Sessions = knarr_ui::Sessions<Credential>;
