#include "control/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace closeranks::control {
namespace {

using testing::HasSubstr;

TEST(Frame, HeaderHasTheBytesOfTheWirePage) {
  const HeaderBytes bytes = encode_header(FrameKind::hello, 0x00012345);
  const unsigned char expected[] = {'C', 'R', 'N', 'K', 3, 0, 16, 0, 0x45, 0x23, 0x01, 0x00};
  EXPECT_EQ(0, std::memcmp(bytes.data(), expected, sizeof expected));
}

TEST(Frame, HeaderComesBackAsItWent) {
  const Result<FrameHeader> header = decode_header(encode_header(FrameKind::install, 77), frame_body_limit, "it");
  ASSERT_TRUE(header.ok()) << header.status().message();
  EXPECT_EQ(header.value().kind, FrameKind::install);
  EXPECT_EQ(header.value().length, 77u);
  EXPECT_EQ(header.value().version, protocol_version);
}

TEST(Frame, AnotherVersionIsNamedTogetherWithOurs) {
  HeaderBytes bytes = encode_header(FrameKind::hello, 0);
  bytes[4] = std::byte{9};
  // The other version may have other kinds and limits: the version is what the reader is told.
  bytes[6] = std::byte{0xff};
  bytes[11] = std::byte{0xff};
  const Result<FrameHeader> header = decode_header(bytes, frame_body_limit, "worker 3");
  ASSERT_FALSE(header.ok());
  EXPECT_EQ(header.status().fault(), Fault::refused);
  EXPECT_THAT(header.status().message(), HasSubstr("worker 3 speaks version 9"));
  EXPECT_THAT(header.status().message(), HasSubstr("this side version 3"));
}

TEST(Frame, StrangeBytesUnknownKindsAndLargeBodiesAreRefused) {
  HeaderBytes bytes{};
  EXPECT_THAT(decode_header(bytes, 10, "it").status().message(), HasSubstr("does not speak closeranks"));
  bytes = encode_header(static_cast<FrameKind>(999), 0);
  EXPECT_THAT(decode_header(bytes, 10, "it").status().message(), HasSubstr("unknown kind 999"));
  bytes = encode_header(FrameKind::hello, 11);
  EXPECT_TRUE(decode_header(bytes, 11, "it").ok());
  EXPECT_THAT(decode_header(bytes, 10, "it").status().message(),
              HasSubstr("a frame of 11 bytes (hello), more than the 10 allowed here"));
}

TEST(Frame, EveryKindHasAName) {
  for (std::uint16_t kind = 0; kind < 100; ++kind) {
    const bool named = name_of(static_cast<FrameKind>(kind)) != "unknown";
    EXPECT_EQ(named, is_known(static_cast<FrameKind>(kind)));
  }
}

TEST(Frame, ABodyAboveTheLimitIsNotMade) {
  EXPECT_TRUE(make_frame(FrameKind::install, std::string(frame_body_limit, 'x')).ok());
  const Result<std::string> frame = make_frame(FrameKind::install, std::string(frame_body_limit + 1, 'x'));
  ASSERT_FALSE(frame.ok());
  EXPECT_EQ(frame.status().fault(), Fault::invalid_argument);
}

}  // namespace
}  // namespace closeranks::control
