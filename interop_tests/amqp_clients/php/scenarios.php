<?php
// php-amqplib, unchanged, through what applications do with it; see program.py for what it prints.
declare(strict_types=1);
require_once 'PhpAmqpLib/autoload.php';

use PhpAmqpLib\Channel\AMQPChannel;
use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Exception\AMQPExceptionInterface;
use PhpAmqpLib\Exception\AMQPProtocolChannelException;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

const LIMIT_S = 60;
$url = parse_url($argv[1]);

function connect(): AMQPStreamConnection
{
    global $url;
    return new AMQPStreamConnection($url['host'], $url['port'], $url['user'], $url['pass'], rawurldecode(substr($url['path'], 1)));
}

function unique(string $name): string
{
    return $name . '-' . bin2hex(random_bytes(8));
}

function same(mixed $wanted, mixed $found): void
{
    if ($wanted !== $found) {
        throw new Exception('not ' . json_encode($wanted) . ' but ' . json_encode($found));
    }
}

// What a queue has, as soon as it has something.
function taken(AMQPChannel $channel, string $queue): AMQPMessage
{
    for ($end = time() + LIMIT_S; time() < $end; usleep(20000)) {
        if (($message = $channel->basic_get($queue)) !== null) {
            return $message;
        }
    }
    throw new Exception("nothing came to $queue");
}

function durable(string $body, array $properties = []): AMQPMessage
{
    return new AMQPMessage($body, $properties + ['delivery_mode' => AMQPMessage::DELIVERY_MODE_PERSISTENT]);
}

$scenarios = [
    'publish-and-consume' => function (AMQPChannel $channel): void {
        $queue = unique('jobs');
        $channel->queue_declare($queue, false, true, false, false);
        $channel->basic_qos(0, 5, false);
        $seen = [];
        $channel->basic_consume($queue, '', false, false, false, false, function (AMQPMessage $message) use (&$seen): void {
            $seen[] = $message->getBody();
            $message->ack();
        });
        $channel->confirm_select();
        for ($number = 0; $number < 50; $number++) {
            $channel->basic_publish(durable("job $number"), '', $queue);
        }
        $channel->wait_for_pending_acks(LIMIT_S);
        while (count($seen) < 50) {
            $channel->wait(null, false, LIMIT_S);
        }
        same(array_map(fn (int $number): string => "job $number", range(0, 49)), $seen);
        same(0, $channel->queue_delete($queue));
    },
    'large-body' => function (AMQPChannel $channel): void {
        $queue = unique('large');
        $channel->queue_declare($queue, false, true, false, false);
        $body = random_bytes(3000000);
        $channel->basic_publish(durable($body), '', $queue);
        same(md5($body), md5(taken($channel, $queue)->getBody()));
    },
    'nack-to-the-dead-letters' => function (AMQPChannel $channel): void {
        [$queue, $sink] = [unique('work'), unique('sink')];
        $channel->queue_declare($sink, false, true, false, false);
        $arguments = new AMQPTable(['x-dead-letter-exchange' => '', 'x-dead-letter-routing-key' => $sink]);
        $channel->queue_declare($queue, false, true, false, false, false, $arguments);
        $channel->basic_publish(durable('poison'), '', $queue);
        taken($channel, $queue)->nack(false);
        $death = taken($channel, $sink)->get('application_headers')->getNativeData()['x-death'][0];
        same(['rejected', $queue, 1], [$death['reason'], $death['queue'], $death['count']]);
    },
    'mandatory-return' => function (AMQPChannel $channel): void {
        $returned = [];
        $channel->set_return_listener(function (int $code, string $text) use (&$returned): void {
            $returned[] = [$code, $text];
        });
        $channel->confirm_select();
        $channel->basic_publish(durable('lost'), 'amq.topic', unique('nobody'), true);
        $channel->wait_for_pending_acks_returns(LIMIT_S);
        same([[312, 'NO_ROUTE']], $returned);
    },
    'headers-of-every-type' => function (AMQPChannel $channel): void {
        $queue = unique('headers');
        $channel->queue_declare($queue, false, false, true);
        $table = ['text' => 'ü', 'small' => 7, 'large' => 1 << 40, 'minus' => -5, 'yes' => true, 'none' => null, 'float' => 0.5,
            'list' => [1, 'two', ['three' => 3]], 'table' => ['deep' => ['er' => 1]]];
        $channel->basic_publish(durable('x', ['application_headers' => new AMQPTable($table), 'priority' => 3, 'message_id' => 'm']), '', $queue);
        $message = taken($channel, $queue);
        $found = $message->get('application_headers')->getNativeData();
        same(['float' => '0.5'] + $table, ['float' => (string) $found['float']] + $found); // this client reads floats as texts
        same([3, 'm'], [$message->get('priority'), $message->get('message_id')]);
    },
    'routing' => function (AMQPChannel $channel): void {
        [$topic, $headers, $queue] = [unique('topic'), unique('headers'), unique('queue')];
        $channel->exchange_declare($topic, 'topic', false, true, false);
        $channel->exchange_declare($headers, 'headers', false, true, false);
        $channel->queue_declare($queue, false, true, false, false);
        $channel->exchange_bind($headers, $topic, 'orders.#');
        $channel->queue_bind($queue, $headers, '', false, new AMQPTable(['x-match' => 'all', 'country' => 'fr']));
        foreach ([['orders.1', 'de'], ['bills.1', 'fr'], ['orders.2', 'fr']] as [$key, $country]) {
            $channel->basic_publish(durable($key, ['application_headers' => new AMQPTable(['country' => $country])]), $topic, $key);
        }
        same('orders.2', taken($channel, $queue)->getBody());
        same(null, $channel->basic_get($queue));
    },
    'transactions' => function (AMQPChannel $channel): void {
        $queue = unique('tx');
        $channel->queue_declare($queue, false, true, false, false);
        $channel->tx_select();
        $channel->basic_publish(durable('regretted'), '', $queue);
        $channel->tx_rollback();
        $channel->basic_publish(durable('meant'), '', $queue);
        same(null, $channel->basic_get($queue));
        $channel->tx_commit();
        same('meant', taken($channel, $queue)->getBody());
    },
    'errors-close-the-channel-only' => function (AMQPChannel $channel): void {
        $other = $channel->getConnection()->channel();
        try {
            $other->queue_declare(unique('nope'), true);
            throw new Exception('a queue that is not there was found');
        } catch (AMQPProtocolChannelException $error) {
            same(404, $error->amqp_reply_code);
        }
        $channel->queue_declare(unique('still'), false, false, true);
    },
    'again-after-a-restart' => function (AMQPChannel $channel): void {
        $queue = unique('kept');
        $channel->queue_declare($queue, false, true, false, false);
        $channel->confirm_select();
        $channel->basic_publish(durable('before'), '', $queue);
        $channel->wait_for_pending_acks(LIMIT_S);
        echo "DO restart\n";
        fgets(STDIN);
        try {
            $channel->queue_declare($queue, true);
            throw new Exception('the connection outlived its server');
        } catch (AMQPExceptionInterface) {
        }
        $again = connect();
        same('before', taken($again->channel(), $queue)->getBody());
        $again->close();
    },
];

foreach ($scenarios as $name => $run) {
    $result = 'ok';
    try {
        $connection = connect();
        $run($connection->channel());
        if ($connection->isConnected()) {
            $connection->close();
        }
    } catch (Throwable $error) {
        $result = get_class($error) . ' ' . str_replace("\n", ' ', $error->getMessage());
    }
    echo "RESULT $name $result\n";
}
echo "END\n";
