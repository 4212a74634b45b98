//! The cluster slot of a key, as every server and client computes it: CRC16 of what stands between the first braces,
//! or of the whole key.

/// Number of slots in a cluster.
const SLOTS: u16 = 16_384;
/// CRC-16/XMODEM: initial value 0, not reflected.
const POLYNOMIAL: u16 = 0x1021;

/// The slot of a key.
pub fn slot_of(key: &[u8]) -> u16 {
    crc16(tag_of(key)) % SLOTS
}

/// What stands between the first `{` and the next `}`, if that is anything; else the whole key.
fn tag_of(key: &[u8]) -> &[u8] {
    let tag = || {
        let (_, rest) = split_at_byte(key, b'{')?;
        let (tag, _) = split_at_byte(rest, b'}')?;
        (!tag.is_empty()).then_some(tag)
    };
    tag().unwrap_or(key)
}

fn split_at_byte(bytes: &[u8], byte: u8) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|&other| other == byte)?;
    Some((bytes.get(..at)?, bytes.get(at + 1..)?))
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        (0..u8::BITS).fold(crc ^ u16::from(byte) << u8::BITS, |crc, _| {
            if crc >> (u16::BITS - 1) == 1 {
                crc << 1 ^ POLYNOMIAL
            } else {
                crc << 1
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc16_is_the_one_of_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b""), 0);
        // What CLUSTER KEYSLOT answers.
        assert_eq!(slot_of(b"foo"), 12_182);
        assert_eq!(slot_of(b"\xff\0k"), slot_of(b"a{\xff\0k}b"));
    }

    #[test]
    fn only_the_first_braces_make_a_tag_and_only_around_something() {
        assert_eq!(tag_of(b"lock:{order:7}"), b"order:7");
        assert_eq!(tag_of(b"{}{tag}"), b"{}{tag}");
        assert_eq!(tag_of(b"{{tag}}"), b"{tag");
        assert_eq!(tag_of(b"a{tag}{other}"), b"tag");
        for whole in [&b"plain"[..], b"{open", b"close}", b"}{", b"{}"] {
            assert_eq!(tag_of(whole), whole);
        }
    }
}
