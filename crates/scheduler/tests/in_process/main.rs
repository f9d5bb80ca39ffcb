//! The scheduler with an API server and the controller of resource claims in the same process, each with the rights of its
//! account.

mod devices;
mod support;
