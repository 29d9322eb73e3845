"""The shortest proof that it works: a namespace of its own, one message there and back by the official SDK."""

from __future__ import annotations

import sys
import time

from azure.servicebus import ServiceBusMessage

from pairbus.testing import Namespace

QUEUE = "orders"
TEXT = "Hello from a broker that needs no cloud."


def main() -> int:
    """Send one message, receive it, complete it; 0 only if it came back whole and is gone afterwards."""
    started_at = time.monotonic()
    with Namespace("contoso", process=True, queues=[QUEUE]) as namespace:
        print(
            f"namespace contoso serves at {namespace.amqp_address} ({time.monotonic() - started_at:.1f} s to start)"
        )
        with namespace.client() as client:
            with client.get_queue_sender(QUEUE) as sender:
                sender.send_messages(ServiceBusMessage(TEXT))
            print(f"sent      {TEXT!r} to queue {QUEUE}: accepted, and on disk")
            with client.get_queue_receiver(QUEUE, max_wait_time=10) as receiver:
                received = receiver.receive_messages(max_message_count=1, max_wait_time=10)
                if [str(message) for message in received] != [TEXT]:
                    print(f"received  {[str(message) for message in received]!r}: that is not what was sent")
                    return 1
                message = received[0]
                print(f"received  {str(message)!r}, sequence number {message.sequence_number}")
                receiver.complete_message(message)
                left_over = receiver.peek_messages(max_message_count=1)
            print(f"completed it; messages left in {QUEUE}: {len(left_over)}")
    return 1 if left_over else 0


if __name__ == "__main__":
    sys.exit(main())
