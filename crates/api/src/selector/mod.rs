//! Label and field selectors, and which fields a kind can be selected by ([`SelectableFields`]).

mod selectable;

pub use knarr_semantics::selector::*;
pub use selectable::SelectableFields;
