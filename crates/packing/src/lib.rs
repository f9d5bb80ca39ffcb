//! Texts in little memory: each is compressed against others like it.
//!
//! Objects of one kind have most of their text in common, and those of one workload nearly all of it. So each is compressed with a
//! dictionary of earlier ones: a pod of 2.5 KB becomes some hundred bytes, and is read within microseconds.

use std::sync::Arc;

use lz4_flex::block;

/// Longer dictionaries take longer to use, and beyond 64 KiB the format cannot refer to them.
const MAX_DICTIONARY: usize = 16 * 1024;
/// A full dictionary is replaced only when the texts packed since the last change of it are so many times as long. So dictionaries
/// use little memory, even if no text is like another.
const TEXT_PER_DICTIONARY: usize = 16;

/// Packs texts, and keeps the dictionary for those that follow.
#[derive(Default)]
pub struct Packer {
    dictionary: Arc<[u8]>,
    /// The length of all texts that were packed since the dictionary was changed.
    packed: usize,
}

/// A packed text.
pub struct Packed {
    /// Absent if the text is not compressed.
    dictionary: Option<Arc<[u8]>>,
    /// The length, then the compressed text; or the text itself.
    text: Box<[u8]>,
}

impl Packer {
    /// Packs a text. One that does not become shorter is kept as it is.
    pub fn pack(&mut self, text: &[u8]) -> Packed {
        let mut compressed = self.compress(text);
        let has_room = self.dictionary.len() + text.len() <= MAX_DICTIONARY;
        // It is not like the others before it: those that follow may be like this one.
        let is_new = compressed.len() > text.len() / if has_room { 4 } else { 2 };
        let was_used = self.packed >= self.dictionary.len() * if has_room { 1 } else { TEXT_PER_DICTIONARY };
        if is_new && was_used && text.len() <= MAX_DICTIONARY {
            let known = if has_room { &*self.dictionary } else { &[] };
            self.dictionary = [known, text].concat().into();
            self.packed = 0;
            compressed = self.compress(text);
        }
        self.packed += text.len();
        if compressed.len() >= text.len() {
            return Packed { dictionary: None, text: text.into() };
        }
        Packed { dictionary: Some(self.dictionary.clone()), text: compressed.into() }
    }

    fn compress(&self, text: &[u8]) -> Vec<u8> {
        block::compress_prepend_size_with_dict(text, &self.dictionary)
    }
}

impl Packed {
    /// The text that was packed.
    pub fn text(&self) -> Vec<u8> {
        match &self.dictionary {
            None => self.text.to_vec(),
            Some(dictionary) => block::decompress_size_prepended_with_dict(&self.text, dictionary)
                .expect("a packer of this process compressed it with this dictionary"),
        }
    }

    /// The length of what is kept, without the dictionary, which others share.
    pub fn packed_len(&self) -> usize {
        self.text.len()
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
            assert_eq!(&packed.text(), text);
        }
        let size: usize = packed.iter().map(|packed| packed.text.len()).sum();
        assert!(size * 10 < texts.concat().len(), "{size} of {}", texts.concat().len());
        let last = packed.last().unwrap().dictionary.as_ref().unwrap();
        let is_last = |packed: &Packed| packed.dictionary.as_ref().is_some_and(|own| Arc::ptr_eq(own, last));
        assert!(packed[300..].iter().all(is_last), "one dictionary for all in the end");
    }

    fn noise(seed: usize, length: usize) -> Vec<u8> {
        let mut state = seed as u64 + 1;
        let random = std::iter::repeat_with(move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        });
        random.take(length).collect()
    }

    #[test]
    fn texts_that_are_unlike_all_others_share_few_dictionaries() {
        let mut packer = Packer::default();
        let texts: Vec<Vec<u8>> = (0..1000).map(|number| [text("web", number), noise(number, 6000)].concat()).collect();
        let packed: Vec<Packed> = texts.iter().map(|text| packer.pack(text)).collect();
        assert!(packed.iter().zip(&texts).all(|(packed, text)| packed.text() == *text));
        let mut dictionaries: Vec<&Arc<[u8]>> = packed.iter().filter_map(|packed| packed.dictionary.as_ref()).collect();
        dictionaries.dedup_by(|one, other| Arc::ptr_eq(one, other));
        let (shared, length): (usize, usize) =
            (dictionaries.iter().map(|own| own.len()).sum(), texts.iter().map(Vec::len).sum());
        assert!(shared * 3 < length, "{shared} of {length}");
    }

    #[test]
    fn dictionaries_stay_short_whatever_is_packed() {
        let mut packer = Packer::default();
        for (number, length) in [0, 1, 5000, 9000, MAX_DICTIONARY, MAX_DICTIONARY + 1, 100_000].into_iter().enumerate()
        {
            let text = noise(number, length);
            assert_eq!(packer.pack(&text).text(), text, "{length}");
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
            assert!(packed.text() == *text, "{} bytes", text.len());
        }
    }
}
