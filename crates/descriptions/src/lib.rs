//! What the fields of the built-in kinds mean, in words: the text behind `kubectl explain`.
//!
//! In: the name of a type as OpenAPI has it, and of one of its fields. Out: the description, if there is one.
//!
//! The texts are collected when this crate is built and lie deflated in the program. [`Descriptions::inflate`] unpacks them
//! for as long as a document is being written; nothing of it stays in memory afterwards.

use std::io::Read;

use flate2::read::DeflateDecoder;

static DEFLATED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptions.deflated"));

/// All descriptions, unpacked.
pub struct Descriptions {
    text: String,
    /// Where each type, field and description begins and ends, sorted by type and field.
    rows: Vec<[(u32, u32); 3]>,
}

impl Descriptions {
    /// Unpacks the descriptions: about a megabyte, in a few milliseconds.
    pub fn inflate() -> std::io::Result<Descriptions> {
        let mut text = String::new();
        DeflateDecoder::new(DEFLATED).read_to_string(&mut text)?;
        let mut parts = Vec::new();
        let mut begin = 0;
        for (end, _) in text.match_indices('\0') {
            parts.push((begin, end as u32));
            begin = end as u32 + 1;
        }
        let rows = parts.chunks_exact(3).map(|row| [row[0], row[1], row[2]]).collect();
        Ok(Descriptions { text, rows })
    }

    /// The description of a field, or of the type itself where the field is empty.
    pub fn get(&self, type_name: &str, field: &str) -> Option<&str> {
        let key = |row: &[(u32, u32); 3]| (self.part(row[0]), self.part(row[1]));
        let at = self.rows.binary_search_by(|row| key(row).cmp(&(type_name, field))).ok()?;
        Some(self.part(self.rows[at][2]))
    }

    fn part(&self, (begin, end): (u32, u32)) -> &str {
        &self.text[begin as usize..end as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_fields_are_described() {
        let descriptions = Descriptions::inflate().unwrap();
        for (type_name, field, begins) in [
            ("io.k8s.api.core.v1.Pod", "", "Pod is"),
            ("io.k8s.api.core.v1.PodSpec", "affinity", "If specified"),
            ("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", "name", "Name must be unique"),
        ] {
            let text = descriptions.get(type_name, field).unwrap();
            assert!(text.starts_with(begins), "{type_name} {field}: {text}");
        }
        assert_eq!(descriptions.get("io.k8s.api.core.v1.PodSpec", "nothing"), None);
        assert_eq!(descriptions.get("", ""), None);
        assert!(descriptions.rows.len() > 2500, "{}", descriptions.rows.len());
    }
}
