# frozen_string_literal: true

# Bunny, unchanged and with its defaults, through what applications do with it; see program.py for what it prints.
require 'bunny'
require 'securerandom'

$stdout.sync = true
URL = ARGV[0]
LIMIT_S = 60

def unique(name)
  "#{name}-#{SecureRandom.hex(8)}"
end

def same(wanted, found)
  raise "not #{wanted.inspect} but #{found.inspect}" unless wanted == found
end

def wait_until
  finish = Time.now + LIMIT_S
  loop do
    found = yield
    return found if found
    raise 'not in time' if Time.now > finish

    sleep 0.02
  end
end

# What a queue has, as soon as it has something.
def taken(queue)
  wait_until do
    found = queue.pop(manual_ack: true)
    found if found[0]
  end
end

def connected
  connection = Bunny.new(URL).start
  yield connection
ensure
  connection&.close if connection&.open?
end

SCENARIOS = {
  'publish-and-consume' => lambda {
    connected do |connection|
      channel = connection.create_channel
      channel.confirm_select
      channel.prefetch(5)
      queue = channel.queue(unique('jobs'), durable: true)
      seen = []
      queue.subscribe(manual_ack: true) do |delivery, _, body|
        seen << body
        channel.ack(delivery.delivery_tag)
      end
      50.times { |number| queue.publish("job #{number}", persistent: true) }
      same true, channel.wait_for_confirms
      wait_until { seen.size == 50 }
      same Array.new(50) { |number| "job #{number}" }, seen
      queue.delete
    end
  },
  'large-body' => lambda {
    connected do |connection|
      queue = connection.create_channel.queue(unique('large'), durable: true)
      body = SecureRandom.random_bytes(3_000_000)
      queue.publish(body)
      same body, taken(queue)[2]
    end
  },
  'nack-to-the-dead-letters' => lambda {
    connected do |connection|
      channel = connection.create_channel
      sink = channel.queue(unique('sink'), durable: true)
      arguments = { 'x-dead-letter-exchange' => '', 'x-dead-letter-routing-key' => sink.name }
      queue = channel.queue(unique('work'), durable: true, arguments: arguments)
      queue.publish('poison')
      channel.nack(taken(queue)[0].delivery_tag, false, false)
      death = taken(sink)[1].headers['x-death'][0]
      same ['rejected', queue.name, 1], death.values_at('reason', 'queue', 'count')
    end
  },
  'mandatory-return' => lambda {
    connected do |connection|
      exchange = connection.create_channel.topic('amq.topic', durable: true)
      returned = Queue.new
      exchange.on_return { |info, _, body| returned << [info.reply_code, body] }
      exchange.publish('lost', routing_key: unique('nobody'), mandatory: true)
      same [312, 'lost'], returned.pop
    end
  },
  'headers-of-every-type' => lambda {
    connected do |connection|
      queue = connection.create_channel.queue('', exclusive: true)
      headers = { 'text' => 'ü'.b, 'small' => 7, 'large' => 1 << 40, 'minus' => -5, 'yes' => true, 'none' => nil, 'float' => 0.5,
                  'list' => [1, 'two', { 'three' => 3 }], 'table' => { 'deep' => { 'er' => 1 } }, 'time' => Time.at(1_700_000_000) }
      queue.publish('x', headers: headers, priority: 3, message_id: 'm')
      _, properties, = taken(queue)
      same headers, properties.headers
      same [3, 'm'], [properties.priority, properties.message_id]
    end
  },
  'routing' => lambda {
    connected do |connection|
      channel = connection.create_channel
      topic = channel.topic(unique('topic'), durable: true)
      headers = channel.headers(unique('headers'), durable: true)
      headers.bind(topic, routing_key: 'orders.#')
      queue = channel.queue(unique('queue'), durable: true)
      queue.bind(headers, arguments: { 'x-match' => 'all', 'country' => 'fr' })
      [%w[orders.1 de], %w[bills.1 fr], %w[orders.2 fr]].each do |key, country|
        topic.publish(key, routing_key: key, headers: { 'country' => country })
      end
      same 'orders.2', taken(queue)[2]
      same nil, queue.pop[0]
    end
  },
  'quorum-queue-counts' => lambda {
    connected do |connection|
      channel = connection.create_channel
      queue = channel.queue(unique('quorum'), durable: true, arguments: { 'x-queue-type' => 'quorum' })
      queue.publish('again')
      channel.reject(taken(queue)[0].delivery_tag, true)
      info, properties, = taken(queue)
      same [true, 1], [info.redelivered?, properties.headers['x-delivery-count']]
    end
  },
  'transactions' => lambda {
    connected do |connection|
      channel = connection.create_channel
      queue = channel.queue(unique('tx'), durable: true)
      channel.tx_select
      queue.publish('regretted')
      channel.tx_rollback
      queue.publish('meant')
      same nil, queue.pop[0]
      channel.tx_commit
      same 'meant', taken(queue)[2]
    end
  },
  'errors-close-the-channel-only' => lambda {
    connected do |connection|
      begin
        connection.create_channel.queue_declare(unique('nope'), passive: true)
        raise 'a queue that is not there was found'
      rescue Bunny::NotFound => e
        same 404, e.channel_close.reply_code
      end
      connection.create_channel.queue('', exclusive: true)
    end
  },
  'consumer-goes-on-after-a-restart' => lambda {
    connected do |connection|
      channel = connection.create_channel
      queue = channel.queue(unique('kept'), durable: true)
      seen = Queue.new
      queue.subscribe { |_, _, body| seen << body }
      recovered = Queue.new
      connection.after_recovery_completed { recovered << true }
      puts 'DO restart'
      $stdin.gets
      recovered.pop
      queue.publish('after', persistent: true)
      same 'after', seen.pop
    end
  }
}.freeze

SCENARIOS.each do |name, action|
  result = 'ok'
  begin
    Timeout.timeout(LIMIT_S + 30) { action.call }
  rescue StandardError => e
    result = "#{e.class} #{e.message}".tr("\n", ' ')
  end
  puts "RESULT #{name} #{result}"
end
puts 'END'
