//! The semantics of values of the Kubernetes API: each rule that several components apply is implemented here, once.
//!
//! Components hold objects as JSON or as types. Nothing here knows either: what a rule reads comes in as text and
//! iterators, so that all components decide alike. `knarr_client` has the functions that read typed objects.
//!
//! - [`quantity`]: amounts such as `250m` and `1.5Gi`; [`pod_resources`]: how those of a pod add up; [`qos`]: its class;
//! - [`selector`]: label and field selectors; [`node_selector`]: terms that nodes match;
//! - [`taint`]: which tolerations tolerate which taints;
//! - [`int_or_percent`]: numbers that may be percentages;
//! - [`cidr`]: addresses and networks;
//! - [`names`], [`field`]: which names are valid, and errors of fields with the messages of Kubernetes;
//! - [`value`]: fields of JSON objects by path.

pub mod cidr;
pub mod field;
pub mod int_or_percent;
pub mod names;
pub mod node_selector;
pub mod pod_resources;
pub mod qos;
pub mod quantity;
pub mod selector;
pub mod taint;
pub mod value;
