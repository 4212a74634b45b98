//! The footer of a `DUMP` payload: two bytes of RDB version and a CRC64 over everything before it, both little-endian.
//! With it a test can change a payload and make it pass the server's checksum, so that the module's own checks are met.

const VERSION_BYTES: usize = 2;
const CHECKSUM_BYTES: usize = 8;
/// The Jones polynomial, bits reversed.
const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;

/// A payload without its checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Type byte and value.
    pub body: Vec<u8>,
    pub rdb_version: u16,
}

impl Payload {
    /// Takes what `DUMP` answered. A wrong checksum fails the test.
    #[track_caller]
    pub fn decode(dump: &[u8]) -> Self {
        let (covered, checksum) = dump.split_last_chunk::<CHECKSUM_BYTES>().expect("a payload ends in a checksum");
        assert_eq!(u64::from_le_bytes(*checksum), crc64(covered), "checksum");
        let (body, version) = covered.split_last_chunk::<VERSION_BYTES>().expect("a payload has a version");
        Self { body: body.to_vec(), rdb_version: u16::from_le_bytes(*version) }
    }

    /// What `RESTORE` takes.
    pub fn encode(&self) -> Vec<u8> {
        with_valid_checksum(&self.body, self.rdb_version)
    }
}

/// Any bytes as a payload that passes the server's version and checksum tests.
pub fn with_valid_checksum(body: &[u8], rdb_version: u16) -> Vec<u8> {
    let mut payload = body.to_vec();
    payload.extend_from_slice(&rdb_version.to_le_bytes());
    let checksum = crc64(&payload);
    payload.extend_from_slice(&checksum.to_le_bytes());
    payload
}

/// CRC-64/Redis: reflected, initial value and final xor zero.
pub fn crc64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |crc, byte| TABLE[usize::from(crc as u8 ^ byte)] ^ (crc >> 8))
}

const TABLE: [u64; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < table.len() {
        let mut crc = index as u64;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc64_is_the_servers() {
        // The value that the server's own self-test pins.
        assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
        assert_eq!(crc64(b""), 0);
    }
}
