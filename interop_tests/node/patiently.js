'use strict';
// The client gives each request three seconds, whatever the machine does beside: what was not answered in time is sent again.
async function patiently(action) {
  const end = Date.now() + 120000;
  while (true) {
    try {
      return await action();
    } catch (error) {
      if (Date.now() > end) throw error;
      await new Promise(resolve => setTimeout(resolve, 50));
    }
  }
}

module.exports = { patiently };
