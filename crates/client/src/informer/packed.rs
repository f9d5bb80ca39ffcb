//! Cached objects in little memory: as JSON, compressed against that of others.
//!
//! Objects of one kind have most of their text in common, and those of one workload nearly all of it. So each is compressed with a
//! dictionary of earlier ones: a pod of 2.5 KB becomes some hundred bytes, and is read within microseconds.

use std::sync::Arc;

use lz4_flex::block;

/// Longer dictionaries take longer to use, and beyond 64 KiB the format cannot refer to them.
const MAX_DICTIONARY: usize = 16 * 1024;

/// Packs objects, and keeps the dictionary for those that follow.
#[derive(Default)]
pub(super) struct Packer {
    dictionary: Arc<[u8]>,
}

pub(super) struct Packed {
    dictionary: Arc<[u8]>,
    /// The length, then the compressed text.
    text: Box<[u8]>,
}

impl Packer {
    pub fn pack(&mut self, text: &[u8]) -> Packed {
        let mut packed = self.compress(text);
        let has_room = self.dictionary.len() + text.len() <= MAX_DICTIONARY;
        // It is not like the others before it: those that follow may be like this one.
        let is_new = packed.len() > text.len() / if has_room { 4 } else { 2 };
        if is_new && text.len() <= MAX_DICTIONARY {
            let known = if has_room { &*self.dictionary } else { &[] };
            self.dictionary = [known, text].concat().into();
            packed = self.compress(text);
        }
        Packed { dictionary: self.dictionary.clone(), text: packed.into() }
    }

    fn compress(&self, text: &[u8]) -> Vec<u8> {
        block::compress_prepend_size_with_dict(text, &self.dictionary)
    }
}

impl Packed {
    /// The text that was packed.
    pub fn text(&self) -> Result<Vec<u8>, block::DecompressError> {
        block::decompress_size_prepended_with_dict(&self.text, &self.dictionary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(kind: &str, number: usize) -> Vec<u8> {
        let fields: Vec<String> = (0..40).map(|field| format!("\"{kind}-field-{field}\":\"{kind}{field}\"")).collect();
        format!("{{\"name\":\"{kind}-{number}\",{}}}", fields.join(",")).into_bytes()
    }

    #[test]
    fn texts_are_as_they_were_and_small_if_others_are_like_them() {
        let mut packer = Packer::default();
        let kinds = ["web", "database", "queue", "job"];
        let texts: Vec<Vec<u8>> = (0..400).map(|number| text(kinds[number % kinds.len()], number)).collect();
        let packed: Vec<Packed> = texts.iter().map(|text| packer.pack(text)).collect();
        for (packed, text) in packed.iter().zip(&texts) {
            assert_eq!(&packed.text().unwrap(), text);
        }
        let size: usize = packed.iter().map(|packed| packed.text.len()).sum();
        assert!(size * 10 < texts.concat().len(), "{size} of {}", texts.concat().len());
        let last = &packed.last().unwrap().dictionary;
        assert!(
            packed[300..].iter().all(|packed| Arc::ptr_eq(&packed.dictionary, last)),
            "one dictionary for all in the end"
        );
    }

    #[test]
    fn dictionaries_stay_short_whatever_is_packed() {
        let mut packer = Packer::default();
        let noise = |seed: usize, length: usize| -> Vec<u8> {
            let mut state = seed as u64 + 1;
            std::iter::repeat_with(move || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            })
            .take(length)
            .collect()
        };
        for (number, length) in [0, 1, 5000, 9000, MAX_DICTIONARY, MAX_DICTIONARY + 1, 100_000].into_iter().enumerate()
        {
            let text = noise(number, length);
            assert_eq!(packer.pack(&text).text().unwrap(), text, "{length}");
            assert!(packer.dictionary.len() <= MAX_DICTIONARY, "{length}");
        }
    }

    #[test]
    fn any_mixture_of_texts_is_as_it_was() {
        use rand::rngs::StdRng;
        use rand::{Rng as _, SeedableRng as _};

        let mut random = StdRng::seed_from_u64(1);
        let mut packer = Packer::default();
        let mut packed = Vec::new();
        for number in 0..3000 {
            let mut text = Vec::new();
            for _ in 0..random.random_range(0..12) {
                match random.random_range(0..4) {
                    0 => text.extend(self::text("web", number % 7)),
                    1 => text.extend(std::iter::repeat_n(random.random::<u8>(), random.random_range(0..300))),
                    2 => text.extend((0..random.random_range(0..300)).map(|_| random.random::<u8>())),
                    _ => text.extend_from_slice(&text.clone()[..text.len() / 2]),
                }
            }
            packed.push((packer.pack(&text), text));
        }
        for (packed, text) in &packed {
            assert!(packed.text().unwrap() == *text, "{} bytes", text.len());
        }
    }
}
