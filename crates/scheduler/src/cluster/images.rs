//! Which images are on how many nodes, and how large they are.

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::core::v1::Node;

use super::node::NodeState;

/// Known images, by any of their names.
#[derive(Default)]
pub struct Images(HashMap<String, Known>);

#[derive(Clone, Copy)]
pub struct Known {
    /// How many nodes have it.
    pub nodes: usize,
    /// As reported by the first of them: sizes may differ.
    pub size: i64,
}

impl Images {
    pub fn get(&self, name: &str) -> Option<Known> {
        self.0.get(name).copied()
    }

    pub fn replace(&mut self, old: Option<&NodeState>, new: Option<&Node>) {
        for name in old.iter().flat_map(|node| node.images()) {
            if let Some(known) = self.0.get_mut(name) {
                known.nodes -= 1;
                if known.nodes == 0 {
                    self.0.remove(name);
                }
            }
        }
        for (name, size) in new.map(sizes).unwrap_or_default() {
            self.0.entry(name.to_owned()).or_insert(Known { nodes: 0, size }).nodes += 1;
        }
    }
}

/// The names of the images that a node has.
pub fn names(node: &Node) -> HashSet<String> {
    sizes(node).into_keys().map(str::to_owned).collect()
}

fn sizes(node: &Node) -> HashMap<&str, i64> {
    let mut sizes = HashMap::new();
    for image in node.status.iter().flat_map(|status| status.images.iter().flatten()) {
        for name in image.names.iter().flatten() {
            sizes.entry(name.as_str()).or_insert(image.size_bytes.unwrap_or(0));
        }
    }
    sizes
}

/// The name by which a node lists an image: with its tag.
pub fn normalized(name: &str) -> String {
    if name.rfind(':') <= name.rfind('/') { format!("{name}:latest") } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_name_without_a_tag_means_latest() {
        for (name, normal) in [
            ("nginx", "nginx:latest"),
            ("nginx:1", "nginx:1"),
            ("host:5000/a", "host:5000/a:latest"),
            ("host:5000/a:1", "host:5000/a:1"),
        ] {
            assert_eq!(normalized(name), normal);
        }
    }

    #[test]
    fn the_first_node_defines_an_images_size() {
        let node = |size: i64| -> Node {
            serde_json::from_value(json!({"status": {"images": [{"names": ["a:1"], "sizeBytes": size}]}})).unwrap()
        };
        let (small, large) = (node(10), node(20));
        let mut images = Images::default();
        let known = |images: &Images| images.get("a:1").map(|known| (known.nodes, known.size));
        images.replace(None, Some(&small));
        images.replace(None, Some(&large));
        assert_eq!(known(&images), Some((2, 10)));
        images.replace(Some(&NodeState::new(Arc::new(small))), None);
        assert_eq!(known(&images), Some((1, 10)));
        images.replace(Some(&NodeState::new(Arc::new(large))), None);
        assert_eq!(known(&images), None);
    }
}
