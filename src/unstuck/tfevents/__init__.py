"""TensorBoard's event files, read and written without TensorBoard: frames of protobuf messages with checksums."""
