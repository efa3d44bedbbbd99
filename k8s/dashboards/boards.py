"""The dashboards, in the order of the questions that an operator asks."""

from k8s.dashboards.capacity import CAPACITY
from k8s.dashboards.controller import CONTROLLER
from k8s.dashboards.overview import OVERVIEW
from k8s.dashboards.speculation import SPECULATION
from k8s.dashboards.transport import TRANSPORT

BOARDS = (OVERVIEW, SPECULATION, CONTROLLER, TRANSPORT, CAPACITY)
