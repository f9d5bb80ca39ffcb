//! Which images are on how many nodes.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Node;

use super::node::NodeState;

/// How many nodes have an image, by any of its names.
#[derive(Default)]
pub struct Images(HashMap<String, usize>);

impl Images {
    pub fn nodes_with(&self, name: &str) -> usize {
        self.0.get(name).copied().unwrap_or(0)
    }

    pub fn replace(&mut self, old: Option<&NodeState>, new: Option<&Node>) {
        for name in old.iter().flat_map(|node| node.image_sizes().keys()) {
            if let Some(count) = self.0.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    self.0.remove(name);
                }
            }
        }
        for name in new.map(image_sizes).unwrap_or_default().into_keys() {
            *self.0.entry(name).or_default() += 1;
        }
    }
}

pub fn image_sizes(node: &Node) -> HashMap<String, i64> {
    let images = node.status.iter().flat_map(|status| status.images.iter().flatten());
    let named = images.flat_map(|image| {
        let size = image.size_bytes.unwrap_or(0);
        image.names.iter().flatten().map(move |name| (name.clone(), size))
    });
    named.collect()
}

/// The name by which a node lists an image: with its tag.
pub fn normalized(name: &str) -> String {
    if name.rfind(':') <= name.rfind('/') { format!("{name}:latest") } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::normalized;

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
}
