//! The descriptions of the built-in kinds' fields, which `kubectl explain` prints.
//!
//! In: the OpenAPI name of a type, and the name of a field. Out: the description, if there is one.
//!
//! The build script collects the texts and embeds them compressed. [`Descriptions::inflate`] decompresses them while a
//! document is being built; nothing stays in memory afterwards.

use std::io::Read;

use flate2::read::DeflateDecoder;

static DEFLATED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptions.deflated"));

/// All descriptions, decompressed.
pub struct Descriptions {
    text: String,
    /// The byte ranges of each type, field and description, sorted by type and field.
    rows: Vec<[(u32, u32); 3]>,
}

impl Descriptions {
    /// Decompresses the descriptions: about a megabyte, in a few milliseconds.
    pub fn inflate() -> std::io::Result<Descriptions> {
        let mut text = String::new();
        DeflateDecoder::new(DEFLATED).read_to_string(&mut text)?;
        let mut ranges = Vec::new();
        let mut start = 0;
        for (end, _) in text.match_indices('\0') {
            ranges.push((start, end as u32));
            start = end as u32 + 1;
        }
        let rows = ranges.chunks_exact(3).map(|row| [row[0], row[1], row[2]]).collect();
        Ok(Descriptions { text, rows })
    }

    /// The description of a field, or of the type itself when the field is empty.
    pub fn get(&self, type_name: &str, field: &str) -> Option<&str> {
        let key = |row: &[(u32, u32); 3]| (self.slice(row[0]), self.slice(row[1]));
        let at = self.rows.binary_search_by(|row| key(row).cmp(&(type_name, field))).ok()?;
        Some(self.slice(self.rows[at][2]))
    }

    fn slice(&self, (start, end): (u32, u32)) -> &str {
        &self.text[start as usize..end as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_fields_are_described() {
        let descriptions = Descriptions::inflate().unwrap();
        for (type_name, field, prefix) in [
            ("io.k8s.api.core.v1.Pod", "", "Pod is"),
            ("io.k8s.api.core.v1.PodSpec", "affinity", "If specified"),
            ("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", "name", "Name must be unique"),
        ] {
            let text = descriptions.get(type_name, field).unwrap();
            assert!(text.starts_with(prefix), "{type_name} {field}: {text}");
        }
        assert_eq!(descriptions.get("io.k8s.api.core.v1.PodSpec", "nothing"), None);
        assert_eq!(descriptions.get("", ""), None);
        assert!(descriptions.rows.len() > 2500, "{}", descriptions.rows.len());
    }
}
